"""Joins the pure parts of a store with the network: dispatches messages, and sends what nodes and
sessions want sent.

One lock guards the node of a store and its session. It is held for computations alone: never while
something blocks, nor while the program's own functions run. Sending only queues a message.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ringcoll.weights.catalog import Json
from ringcoll.weights.endpoint import Endpoint
from ringcoll.weights.node import Node
from ringcoll.weights.session import Session

if TYPE_CHECKING:
    from ringcoll.tables.parts import Parts

Serve = Callable[[str, Json], None]


class Control:
    """The dispatcher of one store. A client without a holder has no node."""

    def __init__(self, endpoint: Endpoint, me: str, name: str, session: Session) -> None:
        self.endpoint = endpoint
        self.me = me
        self.name = name
        self.session = session
        self.lock = threading.RLock()
        self.node: Node | None = None
        self.work: Callable[[Json], None] = lambda task: None  # does what a node wants done
        self.serve: Serve = lambda client, message: None  # answers requests for deltas
        self.tables: Parts | None = None
        self._seen: dict[str, set[str]] = {}  # agent -> its nodes that have sent something
        self._own: deque[Json] = deque()  # messages of this node to itself
        self._draining = False
        session.bind(self)

    def start(self, node: Node | None) -> None:
        """Begins to receive."""
        self.node = node
        self.endpoint.attach(self.me, self)

    def stop(self) -> None:
        """Says goodbye to all that are connected, and receives no more. A holder tells the leader,
        and the leader its members, even if they were not connected yet."""
        with self.lock:
            peers = {node for nodes in self._seen.values() for node in nodes}
            goodbye: Json = {"k": "bye"}
            concerned: set[str] = set()
            if self.node is not None:
                peers |= set(self.node.replica.catalog.members)
                goodbye = self.node.goodbye()
                concerned = self.node.replica.concerned()
            for peer in peers - concerned - {self.me}:
                self.endpoint.send(self.me, peer, goodbye, [])
            for peer in concerned:
                self._send_away(peer, goodbye)
        self.endpoint.detach(self.me, concerned)
        self.session.close()

    def holders(self) -> list[str]:
        """All holders that are known, this one first."""
        with self.lock:
            found = dict.fromkeys(self.session.known())
            if self.node is not None:
                found = {self.me: None} | dict.fromkeys(self.node.replica.catalog.members) | found
            return list(found)

    # Sending: called by sessions, with or without the lock.

    def send(self, destination: str, message: Json) -> bool:
        """Sends a message to a node, which may be this one. False if nobody knows where it is."""
        with self.lock:
            if destination != self.me:
                return self._send_away(destination, message)
            self._own.append(message)
            self._drain()
            return True

    def run(self, action: Callable[[Node, float], None]) -> None:
        """Does something with the node, and sends what comes of it."""
        with self.lock:
            if self.node is not None:
                action(self.node, time.monotonic())
                self._drain()

    # What the endpoint tells.

    def on_message(self, source: str, message: Json) -> None:
        with self.lock:
            self._seen.setdefault(source.partition(".")[0], set()).add(source)
            self._deliver(source, message)
            self._drain()

    def on_up(self, agent: str) -> None:
        with self.lock:
            for peer in self._nodes_of(agent):
                self.session.up(peer)
                if self.node is not None:
                    self.node.up(time.monotonic(), peer)
                if self.tables is not None:
                    self.tables.up(peer)
            self._drain()

    def on_down(self, agent: str, ended: bool) -> None:
        with self.lock:
            for peer in self._nodes_of(agent):
                self._down(peer, ended)
            if ended:
                self._seen.pop(agent, None)
            self._drain()

    def on_tick(self) -> None:
        with self.lock:
            if self.node is not None:
                self.node.tick(time.monotonic())
                self._drain()
            if self.tables is not None:
                self.tables.tick()
        self.session.tick()

    def on_closed(self) -> None:
        self.session.close()

    # All of these are called with the lock.

    def _deliver(self, source: str, message: Json) -> None:
        kind = message.get("k")
        if "a" in message:
            self.session.answered(source, message)
        elif message.get("push") == "table":
            if self.tables is not None:
                self.tables.told(message)
        elif "push" in message:
            self.session.pushed(source, message)
        elif kind in ("i am", "nobody"):
            self.session.found(source if kind == "i am" else None)
        elif message.get("q") == "delta":
            self.serve(source, message)
        elif message.get("q") in ("line", "shards", "save", "saved") and self.tables is not None:
            self.tables.asked(source, message)
        elif kind == "bye":
            if self.node is not None:
                self.node.receive(time.monotonic(), source, message)
            self.session.down(source)
            self._tell_tables_down(source, True)
            self._seen.get(source.partition(".")[0], set()).discard(source)
        elif self.node is not None:
            self.node.receive(time.monotonic(), source, message)
        elif "q" in message:
            refusal = {"moved": None, "info": None}
            self._send_away(source, {"a": message.get("r")} | refusal)

    def _down(self, peer: str, ended: bool) -> None:
        if self.node is not None:
            self.node.down(time.monotonic(), peer, ended)
        self.session.down(peer)
        self._tell_tables_down(peer, ended)

    def _tell_tables_down(self, peer: str, ended: bool) -> None:
        if self.tables is not None:
            self.tables.down(peer, ended)

    def _nodes_of(self, agent: str) -> list[str]:
        """The nodes of an agent that matter here."""
        nodes = set(self._seen.get(agent, ())) | set(self.session.known())
        if self.node is not None:
            nodes |= self.node.replica.relevant()
        prefix = agent + "."
        return sorted(node for node in nodes if node.startswith(prefix))

    def _drain(self) -> None:
        """Sends and does what the node has left behind, until nothing is left."""
        if self._draining:
            return
        self._draining = True
        try:
            while self._drain_once():
                pass
        finally:
            self._draining = False

    def _drain_once(self) -> bool:
        node = self.node
        if node is not None:
            out, node.out[:] = list(node.out), []
            for destination, message in out:
                if destination == self.me:
                    self._own.append(message)
                else:
                    self._send_away(destination, message)
            work, node.work[:] = list(node.work), []
            for task in work:
                self.work(task)
        if self._own:
            self._deliver(self.me, self._own.popleft())
        return bool(self._own or (node is not None and (node.out or node.work)))

    def _send_away(self, destination: str, message: Json) -> bool:
        info: Any = None
        if self.node is not None:
            info = self.node.address(destination)
        info = info or self.session.known().get(destination) or {}
        self._seen.setdefault(destination.partition(".")[0], set()).add(destination)
        return self.endpoint.send(self.me, destination, message, info.get("addresses", []))
