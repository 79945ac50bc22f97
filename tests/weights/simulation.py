"""A simulated network of store holders: pure nodes, messages with delays, and faults by chance.

Time is a number, and everything happens in one thread in an order that the seed decides. A link
between two nodes is made when one sends. It ends with the death of a process, or when one end hears
nothing for 1.5 s because the network is cut or the other process is stopped.
"""

from __future__ import annotations

import heapq
import itertools
import json
import random
from collections.abc import Callable
from typing import Any

from ringcoll.weights.catalog import Catalog
from ringcoll.weights.node import Node

SILENCE_S = 1.5
READ_S = 60.0


class Process:
    """A process with a holder's node, its memory, and a client in the same process."""

    def __init__(self, sim: Simulation, name: str, host: str, catalog: Catalog, leader: str | None):
        self.sim, self.name, self.host = sim, name, host
        self.info = {"addresses": [name], "host": host, "leaf": ""}
        self.node = Node(name, self.info, catalog, leader, sim.now, sim.now)
        self.memory: dict[str, str] = {}
        self.alive, self.stopped = True, False
        self.inbox: list[Callable[[], None]] = []
        self.clients: list[Client] = []
        self._offset = itertools.count()
        sim.at(random.random() * 0.1, self.tick)

    def run(self, action: Callable[[], None]) -> None:
        """Runs something in the process, now or when it goes on."""
        if not self.alive:
            return
        if self.stopped:
            self.inbox.append(action)
            return
        action()
        self.drain()

    def drain(self) -> None:
        while self.node.out or self.node.work:
            out, self.node.out[:] = list(self.node.out), []
            for destination, message in out:
                self.sim.send(self.name, destination, message)
            work, self.node.work[:] = list(self.node.work), []
            for task in work:
                self.do(task)
        self.sim.check_leader(self.node)

    def tick(self) -> None:
        if self.alive:
            self.sim.at(0.1, self.tick)
            if not self.stopped:
                self.run(lambda: self.node.tick(self.sim.now))
                for client in self.clients:
                    self.run(client.tick)

    def deliver(self, source: str, message: dict[str, Any]) -> None:
        if "a" in message or "push" in message:
            for client in self.clients:
                client.receive(source, message)
        else:
            self.node.receive(self.sim.now, source, message)

    def make(self, pids: dict[str, str], owner: str) -> list[list[Any]]:
        """Puts pieces of a stage into memory; returns [entry, region, offset, checksum]."""
        places = {pid: [0, next(self._offset)] for pid in pids}
        self.memory.update(pids)
        self.node.pin(owner, places, {"0": f"handle of {self.name}"})
        return [[int(p.rsplit("/", 1)[1]), *places[p], hash(pids[p]) % 2**60] for p in pids]

    def do(self, task: dict[str, Any]) -> None:
        if task["do"] == "free":
            for pid in task["pids"]:
                del self.memory[pid]
        else:
            end = self.sim.now + READ_S
            self.sim.at(self.sim.delay() * 3, lambda: self.run(lambda: self.pull(task, end)))

    def pull(self, task: dict[str, Any], end: float) -> None:
        """Reads pieces. A read waits for holders that do not answer, as long as it may."""
        waits = any(self.sim.is_silent(self.name, pid, p[2]) for pid, p in task["pieces"].items())
        if waits and self.sim.now < end:
            self.sim.at(0.5, lambda: self.run(lambda: self.pull(task, end)))
            return
        places, problem = dict(task["have"]), ""
        for pid, (_, checksum, sources) in task["pieces"].items():
            data = self.sim.read(self.name, pid, [source for source, *_ in sources])
            if data is None:
                problem = f"{pid} cannot be read"
                continue
            assert hash(data) % 2**60 == checksum
            if pid not in self.node.places:
                self.memory[pid] = data
            places[pid] = self.node.places.get(pid) or [0, next(self._offset)]
        done = {"places": places, "regions": {"0": f"handle of {self.name}"}, "problem": problem}
        self.node.pulled(
            self.sim.now, done | {k: task[k] for k in ("source", "task", "owner", "e")}
        )


class Client:
    """Sends requests of one process, one at a time, until they are answered."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.target: str | None = None
        self.body: dict[str, Any] | None = None
        self.then: Callable[[dict[str, Any]], None] | None = None
        self.number = 1_000_000 * len(process.clients)
        process.clients.append(self)
        self.sent = 0.0
        self.deadline = 0.0
        self.tries = 0

    def ask(self, body: dict[str, Any], timeout: float, then: Callable[[dict], None]) -> None:
        self.body, self.then, self.deadline = body, then, self.process.sim.now + timeout
        self.send()

    def send(self) -> None:
        sim = self.process.sim
        self.number += 1
        self.sent = sim.now
        members = [m for m in sim.processes if m != self.target]
        if self.target is None:
            self.target = members[self.tries % len(members)]
            self.tries += 1
        assert self.body is not None
        sim.send(self.process.name, self.target, self.body | {"r": self.number})

    def receive(self, source: str, message: dict[str, Any]) -> None:
        if message.get("a") != self.number or self.body is None:
            return
        if "moved" in message:
            self.target = message["moved"]
            self.sent = -1e9 if self.target else self.process.sim.now - 0.8
        elif message.get("wait"):
            self.sent = self.process.sim.now - 0.9
        else:
            then, self.body = self.then, None
            assert then is not None
            then(message)

    def down(self, peer: str) -> None:
        if peer == self.target:
            self.target, self.sent = None, -1e9

    def tick(self) -> None:
        now = self.process.sim.now
        if self.body is None:
            return
        if now >= self.deadline:
            then, self.body = self.then, None
            assert then is not None
            then({"error": ["Timeout", "", -1]})
        elif now - self.sent > (1.0 if self.target is None else 5.0):
            if self.sent > 0:
                self.target = None
            self.send()


class Simulation:
    """The network, the clock, and what must hold."""

    process: type[Process] = Process

    def __init__(self, seed: int, hosts: list[str], keep: int, replicas: int | None) -> None:
        self.random = random.Random(seed)
        random.seed(seed)
        self.now = 100.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.processes: dict[str, Process] = {}
        self._links: dict[tuple[str, str], dict[str, Any]] = {}
        self._dialing: dict[tuple[str, str], list[dict[str, Any]]] = {}
        self._last: dict[tuple[str, str], float] = {}
        self.cuts: set[frozenset[str]] = set()  # pairs of hosts
        self.leaders: dict[int, str] = {}
        self.decided: dict[int, str] = {}  # version -> uid, as leaders committed it
        self.keep, self.replicas = keep, replicas
        names = [f"p{i}" for i in range(len(hosts))]
        members = {
            name: {"addresses": [name], "host": host, "leaf": ""}
            for name, host in zip(names, hosts, strict=True)
        }
        for name, host in zip(names, hosts, strict=True):
            catalog = Catalog(json.loads(json.dumps(members)), keep, replicas)
            self.processes[name] = self.process(self, name, host, catalog, names[0])

    def join(self, name: str, host: str) -> None:
        """A new process joins."""
        known = {p.name: p.info for p in self.processes.values()}
        catalog = Catalog(known, self.keep, self.replicas)
        self.processes[name] = self.process(self, name, host, catalog, None)

    def at(self, delay: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now + delay, next(self._order), action))

    def delay(self) -> float:
        return 0.001 + 0.02 * self.random.random() ** 3

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._queue and self._queue[0][0] <= end:
            self.now, _, action = heapq.heappop(self._queue)
            action()
        self.now = end

    # Links.

    def can_reach(self, a: str, b: str) -> bool:
        hosts = frozenset((self.processes[a].host, self.processes[b].host))
        return hosts not in self.cuts

    def is_clear(self, a: str, b: str) -> bool:
        one, other = self.processes[a], self.processes[b]
        return self.can_reach(a, b) and not one.stopped and not other.stopped

    def send(self, source: str, destination: str, message: dict[str, Any]) -> None:
        message = json.loads(json.dumps(message))
        if source == destination:
            process = self.processes[source]
            self.at(0, lambda: process.run(lambda: process.deliver(source, message)))
            return
        pair = (min(source, destination), max(source, destination))
        if pair in self._links:
            self._transmit(pair, source, destination, message)
        elif (source, destination) in self._dialing:
            self._dialing[source, destination].append(message)
        else:
            self._dialing[source, destination] = [message]
            clear = self.is_clear(source, destination) or not self.processes[destination].alive
            wait = self.delay() if clear and self.can_reach(source, destination) else SILENCE_S
            self.at(wait, lambda: self._dialed(pair, source, destination))

    def _dialed(self, pair: tuple[str, str], source: str, destination: str) -> None:
        messages = self._dialing.pop((source, destination), [])
        one, other = self.processes[source], self.processes[destination]
        if not one.alive:
            return
        if not other.alive and self.can_reach(source, destination):
            self._tell_down(source, destination, ended=True)
        elif not self.is_clear(source, destination) or not other.alive:
            self._tell_down(source, destination, ended=False)
        else:
            if pair not in self._links:
                self._links[pair] = {"since": None}
                self._watch(pair)
                for me, peer in ((one, destination), (other, source)):
                    me.run(lambda me=me, peer=peer: me.node.up(self.now, peer))
            for message in messages:
                self._transmit(pair, source, destination, message)

    def _transmit(self, pair: tuple, source: str, destination: str, message: dict) -> None:
        link = self._links[pair]
        arrival = max(self.now + self.delay(), self._last.get((source, destination), 0.0))
        self._last[source, destination] = arrival

        def arrive() -> None:
            if self._links.get(pair) is not link or not self.processes[destination].alive:
                return
            if not self.can_reach(source, destination):
                self.at(0.05, arrive)  # TCP repeats it
                self._last[source, destination] = self.now + 0.05
                return
            process = self.processes[destination]
            process.run(lambda: process.deliver(source, message))

        self.at(arrival - self.now, arrive)

    def _watch(self, pair: tuple[str, str]) -> None:
        """Ends a link when one end is dead, or has been silent for too long."""
        link = self._links[pair]

        def look() -> None:
            if self._links.get(pair) is not link:
                return
            alive = [name for name in pair if self.processes[name].alive]
            if len(alive) < 2 and self.can_reach(*pair):
                self._end(pair, ended=True)
                return
            if len(alive) == 2 and self.is_clear(*pair):
                link["since"] = None
            elif link["since"] is None:
                link["since"] = self.now
            elif self.now - link["since"] >= SILENCE_S:
                self._end(pair, ended=False)
                return
            self.at(0.03 + 0.02 * self.random.random(), look)

        self.at(0.01, look)

    def _end(self, pair: tuple[str, str], ended: bool) -> None:
        del self._links[pair]
        for me, peer in (pair, pair[::-1]):
            self._tell_down(me, peer, ended and not self.processes[peer].alive)

    def _tell_down(self, me: str, peer: str, ended: bool) -> None:
        process = self.processes[me]

        def tell() -> None:
            process.node.down(self.now, peer, ended)
            for client in process.clients:
                client.down(peer)

        process.run(tell)

    # Faults.

    def kill(self, name: str) -> None:
        self.processes[name].alive = False

    def stop(self, name: str) -> None:
        self.processes[name].stopped = True

    def resume(self, name: str) -> None:
        process = self.processes[name]
        process.stopped = False
        actions, process.inbox = process.inbox, []
        for action in actions:
            process.run(action)

    def read(self, reader: str, pid: str, sources: list[str]) -> str | None:
        """What a one-sided read gets: from memory, whatever the owner's node knows."""
        for source in sources:
            process = self.processes[source]
            near = source == reader or self.is_clear(reader, source)
            if process.alive and pid in process.memory and near:
                return process.memory[pid]
        return None

    def is_silent(self, reader: str, pid: str, sources: list[list[Any]]) -> bool:
        """Whether a piece can be read from nobody now, but perhaps later."""
        holders = [source for source, *_ in sources]
        alive = [holder for holder in holders if self.processes[holder].alive]
        return self.read(reader, pid, holders) is None and any(
            not self.is_clear(reader, holder) for holder in alive
        )

    # What must hold at any time.

    def check_leader(self, node: Node) -> None:
        replica = node.replica
        if not replica.leads:
            return
        first = self.leaders.setdefault(replica.epoch, node.me)
        assert first == node.me, f"two leaders of epoch {replica.epoch}"
        for number, version in replica.catalog.versions.items():
            if version["index"] <= replica.committed:
                known = self.decided.setdefault(number, version["uid"])
                assert known == version["uid"], f"version {number} was decided twice"
