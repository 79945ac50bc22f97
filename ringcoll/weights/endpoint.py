"""Messages between the stores of all processes: one endpoint for each agent.

A message is JSON with the ids of two nodes ("s" and "d") and a body ("m"). A node is a store of a
process; its id is that of its agent, a dot and a number. ``d`` may also be "@" and the name of a
store, for those who do not know an id yet.

Two agents talk over one connection, which is dialled when there is something to send. The first
message in each direction is {"hello": agent's id, "v": version}. So an address that another process
has taken over is noticed.

*Lost or ended?* A connection that breaks is dialled again. Only if all addresses refuse, twice, has
the process ended. An address that worked before decides alone.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import weakref
from collections.abc import Collection
from typing import Any, ClassVar, Protocol

from ringcoll.errors import Error, PeerLost
from ringcoll.log import log
from ringcoll.weights import agents
from ringcoll.weights.catalog import Json

VERSION = 1
TICK_S = 0.1
_DIAL_S = 1.5
_PAUSE_S = 0.3  # between attempts to reach a peer that does not answer
_FLUSH_S = 2.0  # for the last messages to a peer
_MOST_QUEUED = 1000  # messages to a peer that is being dialled


class Handler(Protocol):
    """A store, as an endpoint sees it. The methods are called by the endpoint's thread."""

    name: str

    def on_message(self, source: str, message: Json) -> None: ...
    def on_up(self, agent: str) -> None: ...
    def on_down(self, agent: str, ended: bool) -> None: ...
    def on_tick(self) -> None: ...
    def on_closed(self) -> None: ...


class _Peer:
    """Another agent."""

    def __init__(self) -> None:
        self.connections: list[int] = []
        self.addresses: list[str] = []
        self.good: str | None = None  # an address at which it has answered
        self.queue: list[bytes] = []
        self.dialing = False
        self.next_dial = 0.0


class Endpoint:
    """The connections of one agent, and the thread that receives for all its stores."""

    _all: ClassVar[weakref.WeakKeyDictionary[Any, Endpoint]] = weakref.WeakKeyDictionary()
    _all_lock = threading.Lock()

    def __init__(self, agent: Any) -> None:
        self.agent = agent
        self.name = agents.name_of(agent)
        self._lock = threading.Lock()
        self._handlers: dict[str, Handler] = {}
        self._peers: dict[str, _Peer] = {}
        self._by_connection: dict[int, str] = {}
        self._hellos: dict[int, threading.Event] = {}  # connections that were dialled just now
        self._thread: threading.Thread | None = None
        self._last: tuple[Any, str] = (None, "")
        self._serial = 0

    @classmethod
    def of(cls, agent: Any) -> Endpoint:
        """The endpoint of an agent."""
        with cls._all_lock:
            if agent not in cls._all:
                cls._all[agent] = cls(agent)
            return cls._all[agent]

    def new_id(self) -> str:
        """An id for a node of this agent that was never used before."""
        with self._lock:
            self._serial += 1
            return f"{self.name}.{self._serial}"

    def attach(self, node: str, handler: Handler) -> None:
        """Begins to deliver messages for a node. Starts the thread."""
        with self._lock:
            self._handlers[node] = handler
            if self._thread is None or not self._thread.is_alive():
                name = f"ringcoll-store-{self.name[:6]}"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()

    def detach(self, node: str, told: Collection[str] = ()) -> None:
        """Delivers no more to a node. What it has sent to the nodes ``told`` is sent first, if they
        can be reached soon. The thread ends with the last node, and connections are hung up."""
        with self._lock:
            self._handlers.pop(node, None)
        self._flush({peer.partition(".")[0] for peer in told})
        with self._lock:
            if self._handlers:
                return
            connections, self._by_connection = list(self._by_connection), {}
            self._peers.clear()
            thread, self._thread = self._thread, None
        for connection in connections:
            with contextlib.suppress(Error):
                self.agent.hang_up(connection)
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=2.0)

    def _flush(self, agents: set[str]) -> None:
        """Waits until those of the peers that are being dialled are connected, or cannot be
        reached."""
        end = time.monotonic() + _FLUSH_S
        while time.monotonic() < end:
            with self._lock:
                if not any(agent in agents and peer.queue for agent, peer in self._peers.items()):
                    return
            time.sleep(0.005)

    def store_named(self, name: str) -> bool:
        """Whether a store with this name is attached."""
        with self._lock:
            return any(handler.name == name for handler in self._handlers.values())

    # Sending.

    def send(self, source: str, destination: str, message: Json, addresses: list[str]) -> bool:
        """Sends a message, or drops it if the peer cannot be reached; then handlers are told that
        it is down. Never blocks. ``addresses`` may be empty if the peer has connected itself. False
        if it has not, and nobody knows where it is: then nobody is told anything."""
        last, body = self._last
        if last is not message:
            body = json.dumps(message, separators=(",", ":"))
            self._last = (message, body)
        text = f'{{"s":"{source}","d":"{destination}","m":{body}}}'.encode()
        return self._post(destination.partition(".")[0], text, addresses)

    def dial_store(self, source: str, name: str, address: str, timeout: float) -> None:
        """Connects to the agent at an address, and asks its store ``name`` who it is: the answer is
        a message "i am" from that node. Raises what Agent.dial() raises."""
        connection = self.agent.dial(address, timeout)
        self.agent.send(connection, self._hello())
        text = json.dumps({"s": source, "d": f"@{name}", "m": {"k": "who"}})
        self.agent.send(connection, text.encode())

    def _post(self, agent: str, text: bytes, addresses: list[str]) -> bool:
        with self._lock:
            peer = self._peers.setdefault(agent, _Peer())
            if addresses:
                peer.addresses = addresses
            for connection in list(peer.connections):
                try:
                    self.agent.send(connection, text)
                    return True
                except Error:
                    continue  # the end of the connection, or of the agent, is an event that comes
            if peer.connections or not peer.addresses:
                return bool(peer.connections)
            if not peer.dialing:
                self._start_dial(agent, peer)
            if len(peer.queue) < _MOST_QUEUED:
                peer.queue.append(text)
            return True

    def _hello(self) -> bytes:
        return json.dumps({"hello": self.name, "v": VERSION}).encode()

    # Dialling, in threads of its own.

    def _start_dial(self, agent: str, peer: _Peer) -> None:
        peer.dialing = True
        threading.Thread(
            target=self._dial, args=(agent, peer), name="ringcoll-store-dial", daemon=True
        ).start()

    def _dial(self, agent: str, peer: _Peer) -> None:
        time.sleep(max(0.0, peer.next_dial - time.monotonic()))
        verdict = "silent"
        for attempt in range(2):
            good = peer.good
            addresses = [good] if good else list(peer.addresses)
            verdicts = [self._try(agent, peer, address) for address in _until(addresses)]
            if "up" in verdicts:
                return
            told = [each for each in verdicts if each != "forbidden"]
            verdict = "ended" if told and all(each == "ended" for each in told) else "silent"
            if verdict == "silent":
                peer.good = None  # the next attempt tries all addresses
                break
            if attempt == 0:
                time.sleep(0.03)
        with self._lock:
            peer.dialing = False
            peer.queue.clear()
            peer.next_dial = time.monotonic() + _PAUSE_S
            if peer.connections:
                return
            if verdict == "ended":
                self._peers.pop(agent, None)
        self._tell_down(agent, verdict == "ended")

    def _try(self, agent: str, peer: _Peer, address: str) -> str:
        """One attempt: "up", "ended", "silent" or "forbidden"."""
        with self._lock:
            if peer.connections:  # it has connected itself meanwhile
                self._settle(peer)
                return "up"
        try:
            connection = self.agent.dial(address, _DIAL_S)
        except PeerLost:
            return "ended"
        except Error as error:
            return "silent" if error.code in ("Timeout", "Transport") else "forbidden"
        answered = threading.Event()
        with self._lock:
            self._hellos[connection] = answered
        try:
            self.agent.send(connection, self._hello())
        except Error:
            return "silent"
        answered.wait(_DIAL_S)
        with self._lock:
            self._hellos.pop(connection, None)
            found = self._by_connection.get(connection)
            if found == agent:
                peer.good = address
                return "up"
        with contextlib.suppress(Error):
            self.agent.hang_up(connection)
        return "silent" if found is None else "ended"

    def _settle(self, peer: _Peer) -> None:
        """A connection is there: sends what waits for it. Called with the lock."""
        peer.dialing = False
        queue, peer.queue = peer.queue, []
        for text in queue:
            with contextlib.suppress(Error):
                self.agent.send(peer.connections[0], text)

    # Receiving: the endpoint's thread.

    def _run(self) -> None:
        me = threading.current_thread()
        next_tick = time.monotonic()
        while self._thread is me:
            try:
                wait = next_tick - time.monotonic()
                event = self.agent.receive(max(wait, 0.0)) if wait > 0 else None
                if event is not None:
                    self._take(event)
            except Error as error:  # the agent was closed
                if self._thread is me:
                    log.debug("store: the agent is closed: %s", error)
                    self._each(lambda handler: handler.on_closed())
                return
            if time.monotonic() >= next_tick:
                next_tick = time.monotonic() + TICK_S
                self._each(lambda handler: handler.on_tick())

    def _each(self, call: Any) -> None:
        with self._lock:
            handlers = list(self._handlers.values())
        for handler in handlers:
            try:
                call(handler)
            except Exception:  # a defect must not end the thread of all stores
                log.exception("store: %s failed", handler.name)

    def _take(self, event: Any) -> None:
        kind, connection, payload = event
        if kind == "message":
            self._take_message(connection, payload)
        elif kind == "closed":
            self._take_end(connection, payload)

    def _take_message(self, connection: int, payload: bytes) -> None:
        try:
            message = json.loads(payload)
            hello, source = message.get("hello"), message.get("s")
        except (ValueError, AttributeError):
            log.warning("store: a message that is no JSON was ignored")
            return
        if hello is not None:
            self._take_hello(connection, str(hello))
            return
        if source is None or source.partition(".")[0] != self._by_connection.get(connection):
            return  # of a process that has not said who it is, or says that it is another
        self._deliver(source, str(message.get("d")), message.get("m") or {})

    def _take_hello(self, connection: int, agent: str) -> None:
        with self._lock:
            known = self._by_connection.get(connection)
            answered = self._hellos.get(connection)
            if known is None:
                self._by_connection[connection] = agent
                peer = self._peers.setdefault(agent, _Peer())
                first = not peer.connections
                # Before other threads can send there: the peer drops what comes before a hello.
                if answered is None:
                    with contextlib.suppress(Error):
                        self.agent.send(connection, self._hello())
                peer.connections.append(connection)
                self._settle(peer)
        if known is None and first:
            self._each(lambda handler: handler.on_up(agent))
        if answered is not None:
            answered.set()

    def _take_end(self, connection: int, why: bytes) -> None:
        with self._lock:
            answered = self._hellos.get(connection)
            if answered is not None:
                answered.set()
            agent = self._by_connection.pop(connection, None)
            peer = self._peers.get(agent) if agent else None
            if agent is None or peer is None:
                return
            if connection in peer.connections:
                peer.connections.remove(connection)
            ended = self._has_ended(peer, why)
            if ended:
                self._peers.pop(agent, None)
        # What was under way on the connection is lost, even if there is another one.
        self._tell_down(agent, ended)
        if not ended:
            self._restore(agent, peer, why)

    @staticmethod
    def _has_ended(peer: _Peer, why: bytes) -> bool:
        """Whether the end of a connection says that the peer's process has ended. One that says
        goodbye and has an address is asked there."""
        if peer.connections:
            return False
        return why == b"refused" or (why == b"goodbye" and not peer.addresses)

    def _restore(self, agent: str, peer: _Peer, why: bytes) -> None:
        """Goes on with another connection, or dials for one."""
        with self._lock:
            connected = bool(peer.connections)
            if not connected and not peer.dialing and peer.addresses and why != b"silent":
                self._start_dial(agent, peer)
        if connected:
            self._each(lambda handler: handler.on_up(agent))

    def _deliver(self, source: str, destination: str, message: Json) -> None:
        with self._lock:
            handlers = dict(self._handlers)
        if destination.startswith("@"):
            name = destination[1:]
            for node, handler in handlers.items():
                if handler.name == name:
                    self.send(node, source, {"k": "i am"}, [])
                    return
            self.send(f"{self.name}.0", source, {"k": "nobody"}, [])
        elif destination in handlers:
            try:
                handlers[destination].on_message(source, message)
            except Exception:  # a defect must not end the thread of all stores
                log.exception("store: a message of %s failed", source)
        elif message.get("k") != "bye":
            self.send(destination, source, {"k": "bye"}, [])  # that store was closed

    def _tell_down(self, agent: str, ended: bool) -> None:
        self._each(lambda handler: handler.on_down(agent, ended))


def _until(addresses: list[str]) -> list[str]:
    """The addresses without repetitions."""
    return list(dict.fromkeys(addresses))
