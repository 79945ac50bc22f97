"""Agents as objects of one process, over a simulated network with faults.

They have the interface of :class:`ringcoll.remote.Agent`, as far as a store uses it. A network can
kill an agent (its process ends), stop it (SIGSTOP), cut hosts off from one another, and delay
messages by chance: those of one connection stay in order, others do not. Memory is NumPy arrays.
"""

from __future__ import annotations

import heapq
import itertools
import queue
import random
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy

from ringcoll.errors import Aborted, Error, Gone, InvalidArgument, PeerLost, Refused, Timeout
from ringcoll.remote import Event


class FakeNetwork:
    """All agents, and what is wrong between them."""

    def __init__(self, seed: int = 0, delay: float = 0.0, silence: float = 1.5) -> None:
        self.lock = threading.RLock()
        self.random = random.Random(seed)
        self.delay, self.silence = delay, silence
        self.agents: list[FakeAgent] = []
        self.cuts: set[frozenset[str]] = set()
        self.ports: dict[int, FakeAgent] = {}
        self.next_port = itertools.count(1000)
        self._heap: list[tuple[float, int, Any]] = []
        self._order = itertools.count()
        self._wake = threading.Condition()
        self._closed = False
        self._suspects: dict[int, float] = {}
        self._links: dict[int, Link] = {}
        threading.Thread(target=self._run, daemon=True, name="fake-network").start()

    def agent(self, host: str = "a") -> FakeAgent:
        return FakeAgent(self, host)

    def close(self) -> None:
        for agent in list(self.agents):
            agent.close()
        with self._wake:
            self._closed = True
            self._wake.notify()

    # Faults.

    def kill(self, agent: FakeAgent) -> None:
        """The agent's process ends, with all its threads."""
        with self.lock:
            agent.alive = False
            agent.events.put(None)
            for link in list(agent.links.values()):
                other = link.other(agent)
                if self.reaches(agent, other):
                    link.end(other, b"refused")
        agent.resumed.set()

    def stop(self, agent: FakeAgent) -> None:
        agent.resumed.clear()

    def resume(self, agent: FakeAgent) -> None:
        agent.resumed.set()

    def cut(self, one: str, other: str) -> None:
        with self.lock:
            self.cuts.add(frozenset((one, other)))

    def heal(self) -> None:
        with self.lock:
            self.cuts.clear()

    def reaches(self, one: FakeAgent, other: FakeAgent) -> bool:
        return frozenset((one.host, other.host)) not in self.cuts

    def clear(self, one: FakeAgent, other: FakeAgent) -> bool:
        """Whether bytes get from one to the other now."""
        return self.reaches(one, other) and one.resumed.is_set() and other.resumed.is_set()

    # The clock.

    def at(self, moment: float, action: Any) -> None:
        with self._wake:
            heapq.heappush(self._heap, (moment, next(self._order), action))
            self._wake.notify()

    def _run(self) -> None:
        next_look = time.monotonic()
        while True:
            with self._wake:
                if self._closed:
                    return
                now = time.monotonic()
                due = []
                while self._heap and self._heap[0][0] <= now:
                    due.append(heapq.heappop(self._heap)[2])
                if not due:
                    wait = min(next_look, self._heap[0][0] if self._heap else next_look) - now
                    self._wake.wait(max(0.0005, wait))
            for action in due:
                action()
            if time.monotonic() >= next_look:
                next_look = time.monotonic() + min(0.05, self.silence / 5)
                self._find_silence()

    def _find_silence(self) -> None:
        with self.lock:
            now = time.monotonic()
            for link in list(self._links.values()):
                if self.clear(link.one, link.two) or not (link.one.alive and link.two.alive):
                    self._suspects.pop(link.number, None)
                    if not (link.one.alive and link.two.alive) and self.reaches(link.one, link.two):
                        for end in (link.one, link.two):
                            link.end(end, b"refused")
                elif now - self._suspects.setdefault(link.number, now) > self.silence:
                    self._suspects.pop(link.number)
                    for end in (link.one, link.two):
                        link.end(end, b"silent")


class Link:
    """A connection of two agents; each numbers it itself."""

    _count = itertools.count(1)

    def __init__(self, one: FakeAgent, two: FakeAgent) -> None:
        self.one, self.two = one, two
        self.number = next(Link._count)
        self.names = {id(one): one.new_connection(self), id(two): two.new_connection(self)}
        self.last: dict[int, float] = {}
        self.open = True
        one.network._links[self.number] = self

    def other(self, agent: FakeAgent) -> FakeAgent:
        return self.two if agent is self.one else self.one

    def carry(self, target: FakeAgent, event: Event) -> None:
        """Brings an event to one end, in order, when the network lets it pass."""
        network = target.network
        if not network.delay and network.clear(self.one, self.two) and not self.last:
            target.events.put(event)
            return
        now = time.monotonic()
        at = max(now + network.random.random() * network.delay, self.last.get(id(target), 0.0))
        self.last[id(target)] = at + 1e-6

        def arrive() -> None:
            if not self.open and event.kind != "closed":
                return
            if network.reaches(self.one, self.two):
                target.events.put(event)
            else:
                later = max(time.monotonic() + 0.02, self.last[id(target)] + 1e-6)
                self.last[id(target)] = later
                network.at(later, arrive)

        network.at(at, arrive)

    def end(self, target: FakeAgent, why: bytes) -> None:
        """One end learns that the connection is over."""
        self.open = False
        target.network._links.pop(self.number, None)
        name = self.names[id(target)]
        if target.links.pop(name, None) is not None:
            target.events.put(Event("closed", name, why))


class FakeRegion:
    def __init__(self, agent: FakeAgent, array: Any, writable: bool) -> None:
        self.agent, self.array, self.writable = agent, array, writable
        self.number = agent.network.random.getrandbits(60)
        agent.regions[self.number] = self

    def handle(self) -> bytes:
        return f"{self.agent.number}:{self.number}".encode()

    def close(self, timeout: float = 5.0) -> None:
        self.agent.regions.pop(self.number, None)


class FakeAgent:
    def __init__(self, network: FakeNetwork, host: str) -> None:
        self.network, self.host, self.leaf = network, host, ""
        self.id = network.random.getrandbits(64)
        self.alive = True
        self.closed = False
        self.events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self.links: dict[int, Link] = {}
        self.regions: dict[int, FakeRegion] = {}
        self.resumed = threading.Event()
        self.resumed.set()
        self.keys: dict[str, str] = {}
        self.port = next(network.next_port)
        self.transfers = 0
        self.read_bytes: dict[int, int] = {}
        self.corrupt: set[int] = set()  # owners whose bytes arrive with an error
        self._connections = itertools.count(1)
        with network.lock:
            self.number = len(network.agents)
            network.agents.append(self)
            network.ports[self.port] = self

    # Who it is.

    @property
    def addresses(self) -> list[str]:
        return [f"ringcoll://fake:{self.port}/{name}" for name in ("ranks", *self.keys)]

    def admit(self, name: str, key: str, port: int = 0) -> str:
        self.keys[name] = key
        return f"ringcoll://fake:{self.port}/{name}"

    def stats(self) -> dict[str, Any]:
        return {"served": {}}

    def _check(self) -> None:
        if not self.alive or self.closed:
            raise Aborted("the agent is closed")
        if not self.resumed.is_set():
            self.resumed.wait()
            self._check()

    # Memory.

    def empty(self, shape: Any, dtype: str) -> numpy.ndarray:
        return numpy.zeros(shape, dtype)

    def register(self, array: Any, writable: bool = False) -> FakeRegion:
        self._check()
        return FakeRegion(self, array, writable)

    def transfer(self, copies: Iterable[Any], timeout: float | None = None) -> None:
        self._check()
        self.transfers += 1
        end = time.monotonic() + (60.0 if timeout is None else timeout)
        for copy in copies:
            self._read(copy.out, copy.sources, end)

    def _read(self, out: Any, sources: Sequence[Any], end: float) -> None:
        problem: Error = InvalidArgument("there is no source")
        for source in sources:
            handle, offset, *_ = source
            number, region = map(int, handle.decode().split(":"))
            owner = self.network.agents[number]
            try:
                self._read_from(owner, region, offset, out, end)
                self._check()
                return
            except (PeerLost, Gone, Timeout) as error:
                problem = error
        raise problem

    def _read_from(self, owner: FakeAgent, region: int, offset: int, out: Any, end: float) -> None:
        silent = min(end, time.monotonic() + self.network.silence * 0.66)
        while owner is not self and not self._can_read(owner):
            if time.monotonic() >= silent:
                raise Timeout("the owner does not answer")
            time.sleep(0.005)
        if not owner.alive:
            raise PeerLost("the owner has ended")
        found = owner.regions.get(region)
        if found is None:
            raise Gone("the region is closed")
        if offset + out.nbytes > found.array.nbytes:
            raise InvalidArgument("out of range")
        out[...] = found.array[offset : offset + out.nbytes]
        if owner.number in self.corrupt and out.nbytes:
            out[0] ^= 1
        self.read_bytes[owner.number] = self.read_bytes.get(owner.number, 0) + out.nbytes

    def _can_read(self, owner: FakeAgent) -> bool:
        if not self.network.reaches(self, owner):
            return False
        return owner.resumed.is_set() or owner.host == self.host or not owner.alive

    # Messages.

    def new_connection(self, link: Link) -> int:
        number = next(self._connections)
        self.links[number] = link
        return number

    def dial(self, address: str, timeout: float = 5.0) -> int:
        self._check()
        place, _, name = address.removeprefix("ringcoll://").partition("/")
        peer = self.network.ports.get(int(place.partition(":")[2]))
        if peer is None:
            raise PeerLost("nobody listens")
        end = time.monotonic() + min(timeout, self.network.silence)
        while True:
            with self.network.lock:
                if self.network.reaches(self, peer):
                    if not peer.alive or peer.closed:
                        raise PeerLost("nobody listens")
                    if name != "ranks" and peer.keys.get(name) != self.keys.get(name):
                        raise Refused("the key is wrong")
                    if peer.resumed.is_set():
                        link = Link(self, peer)
                        link.carry(peer, Event("opened", link.names[id(peer)], b""))
                        return link.names[id(self)]
            if time.monotonic() > end:
                raise Timeout("no answer")
            time.sleep(0.005)

    def send(self, connection: int, payload: bytes) -> None:
        self._check()
        with self.network.lock:
            link = self.links.get(connection)
            if link is None:
                raise PeerLost("the connection is closed")
            peer = link.other(self)
            link.carry(peer, Event("message", link.names[id(peer)], bytes(payload)))

    def receive(self, timeout: float | None = None) -> Event | None:
        self._check()
        try:
            event = self.events.get(timeout=timeout)
        except queue.Empty:
            return None
        self._check()
        return event

    def hang_up(self, connection: int) -> None:
        with self.network.lock:
            link = self.links.pop(connection, None)
            if link is not None:
                peer = link.other(self)
                self.network._links.pop(link.number, None)
                name = link.names[id(peer)]
                if peer.links.pop(name, None) is not None:
                    link.carry(peer, Event("closed", name, b"goodbye"))

    def close(self) -> None:
        for connection in list(self.links):
            self.hang_up(connection)
        self.closed = True
        self.resumed.set()
        self.events.put(None)


class FakeGuest(FakeAgent):
    """The agent of a process without a rank."""

    def __init__(self, network: FakeNetwork, host: str, address: str, key: str) -> None:
        super().__init__(network, host)
        self.address = address
        self.admit(address.rpartition("/")[2], key)


class FakeWorld:
    """The communicator of ranks that are threads."""

    def __init__(self, agents: list[FakeAgent]) -> None:
        self.size = len(agents)
        self._agents = agents
        self._barrier = threading.Barrier(self.size)
        self._slots: list[Any] = [None] * self.size

    def rank_of(self, rank: int) -> FakeRank:
        return FakeRank(self, rank)


class FakeRank:
    """One rank of a :class:`FakeWorld`."""

    def __init__(self, world: FakeWorld, rank: int) -> None:
        self._world, self.rank, self.size = world, rank, world.size
        self.agent = world._agents[rank]

    def allgather(self, x: numpy.ndarray, counts: Sequence[int] | None = None) -> numpy.ndarray:
        self._world._slots[self.rank] = x
        self._world._barrier.wait(20)
        joined = numpy.concatenate(self._world._slots)
        self._world._barrier.wait(20)
        return joined

    def barrier(self) -> None:
        self._world._barrier.wait(20)
