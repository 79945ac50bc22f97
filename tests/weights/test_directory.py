"""Holders in a simulated network with kills, stops, cuts, joins: thousands of seeds."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
from simulation import Client, Process, Simulation

from ringcoll.weights import quorum

SEEDS = int(os.environ.get("RINGCOLL_TEST_SEEDS", "400"))


class Writer:
    """Commits again and again from one process, as a group of its own."""

    def __init__(self, process: Process, names: int) -> None:
        self.process, self.names = process, names
        self.client = Client(process)
        self.sequence = 0
        self.acknowledged: dict[int, str] = {}
        self.pieces: dict[int, list[str]] = {}
        self.busy = False

    def commit(self) -> None:
        if self.busy or not self.process.alive:
            return
        self.busy = True
        self.sequence += 1
        self.made: list[Any] | None = None
        self._stage()

    def _stage(self) -> None:
        group = self.process.name
        self.uid = f"{group}.{self.sequence}"
        self.base = {"group": group, "sequence": self.sequence, "rank": 0}
        entries = [[f"w{i}", "uint8", [4], None, None] for i in range(self.names)]
        body = self.base | {"q": "stage", "size": 1, "token": "t", "entries": entries}
        body["writers"] = {group: self.process.info}
        body |= {"deleted": [], "metadata": None, "timeout": 20.0, "time": 0.0}
        self.client.ask(body, 25.0, self._copy)

    def _copy(self, answer: dict[str, Any]) -> None:
        if "copy" not in answer:
            self._end(answer)
            return
        if self.made is None:
            data = {f"{self.uid}/0/{i}": f"{self.uid} w{i}" for i in range(self.names)}
            self.made = self.process.make(data, self.uid)
        body = self.base | {"q": "staged", "pieces": self.made}
        body["regions"] = {"0": f"handle of {self.process.name}"}
        self.client.ask(body, 25.0, self._end)

    def _end(self, answer: dict[str, Any]) -> None:
        if "again" in answer:
            self._stage()
            return
        if "version" in answer:
            self.acknowledged[answer["version"]] = self.uid
            self.pieces[answer["version"]] = [f"{self.uid}/0/{i}" for i in range(self.names)]
        self.process.node.unpin(self.process.sim.now, self.uid)
        self.busy = False


class Reader:
    """Gets the newest version, reads it slowly, and checks what it has read."""

    def __init__(self, process: Process) -> None:
        self.process, self.client = process, Client(process)
        self.busy = False
        self.read = 0
        self.lease = 0
        self.newest = 0

    def get(self) -> None:
        if self.busy or not self.process.alive:
            return
        self.busy = True
        self.lease += 1
        body = {"q": "manifest", "version": "latest", "lease": f"{self.process.name}.{self.lease}"}
        self.client.ask(body, 10.0, self._read)

    def _read(self, answer: dict[str, Any]) -> None:
        if "manifest" not in answer:
            self._release()
            return
        process = self.process
        process.sim.at(0.2, lambda: process.run(lambda: self._finish(answer)))

    def _finish(self, answer: dict[str, Any]) -> None:
        sim, manifest = self.process.sim, answer["manifest"]
        found = 0
        for name, (_, _, pids) in manifest["version"]["tensors"].items():
            for pid in pids:
                data = sim.read(self.process.name, pid, list(manifest["copies"][pid]))
                if data is not None:
                    assert data == f"{pid.split('/')[0]} {name}"
                    found += 1
        number, uid = manifest["version"]["n"], manifest["version"]["uid"]
        assert sim.decided.get(number, uid) == uid, "a reader saw what was not committed"
        self.read += found > 0
        self._release()

    def _release(self) -> None:
        body = {"q": "release", "leases": [f"{self.process.name}.{self.lease}"]}
        self.client.ask(body, 30.0, self._done)

    def _done(self, answer: dict[str, Any]) -> None:
        self.busy = False


def _fault(sim: Simulation, rng: random.Random, joined: list[int]) -> None:
    living = [p for p in sim.processes.values() if p.alive]
    choice = rng.random()
    victim = rng.choice(living).name
    if choice < 0.25 and len(living) > 2:
        sim.kill(victim)
    elif choice < 0.45:
        sim.stop(victim)
        sim.at(rng.choice([0.5, 3.0, 9.0, 20.0]), lambda: sim.resume(victim))
    elif choice < 0.7:
        hosts = sorted({p.host for p in sim.processes.values()})
        cut = frozenset(rng.sample(hosts, 2)) if len(hosts) > 1 else frozenset(hosts)
        sim.cuts.add(cut)
        sim.at(rng.choice([0.5, 3.0, 9.0, 20.0]), lambda: sim.cuts.discard(cut))
    elif choice < 0.85 and len(joined) < 4:
        joined.append(1)
        sim.join(f"j{len(joined)}", rng.choice(["a", "b", "c"]))


def run_seed(seed: int) -> dict[str, int]:
    """One history; returns what happened in it. Raises AssertionError if something is wrong."""
    rng = random.Random(seed)
    count = rng.choice([1, 2, 2, 3, 3, 4, 5])
    hosts = [rng.choice(["a", "b", "c"]) for _ in range(count)]
    keep = rng.choice([1, 2, 3])
    sim = Simulation(seed, hosts, keep, rng.choice([None, 0, 1, 2]))
    writers = [Writer(sim.processes["p0"], 3)]
    if count > 1:
        writers.append(Writer(sim.processes[f"p{count - 1}"], 2))
    reader = Reader(sim.processes[f"p{rng.randrange(count)}"])
    joined: list[int] = []
    quiet = rng.random() < 0.2
    for _ in range(rng.choice([10, 30, 60])):
        for writer in writers:
            if rng.random() < 0.6:
                writer.process.run(writer.commit)
        reader.process.run(reader.get)
        if not quiet and rng.random() < 0.25:
            _fault(sim, rng, joined)
        sim.run(rng.choice([0.05, 0.2, 1.0]))
    for process in sim.processes.values():
        if process.stopped:
            sim.resume(process.name)
    sim.cuts.clear()
    sim.run(60.0)
    return _check_end(sim, writers) | {"read": reader.read}


def _check_end(sim: Simulation, writers: list[Writer]) -> dict[str, int]:
    living = [p for p in sim.processes.values() if p.alive]
    leading = [p for p in living if p.node.replica.leads]
    acknowledged, pieces = _acknowledged(sim, writers)
    if not leading:
        return {"acknowledged": len(acknowledged), "leaderless": 1}
    assert len(leading) == 1, "two leaders after the network was whole for a minute"
    node = leading[0].node
    catalog, replica = node.replica.catalog, node.replica
    if not replica.idle():
        # The members that ended may have had another leader, and that may have new members.
        living_names = {p.name for p in living}
        sets, stale = replica._sets(), replica._stale()
        assert not quorum.leader_may_go_on(sets, living_names, set(replica.ended), stale)
        return {"acknowledged": len(acknowledged), "leaderless": 1}
    lonely = {p.name for p in living if p.node.replica.epoch == 0 and _knows_nobody(p)}
    living = [p for p in living if p.name not in lonely]
    assert set(catalog.members) == {p.name for p in living}
    _check_versions(sim, catalog, living, acknowledged, pieces)
    _check_holders(sim, node, living)
    return {"acknowledged": len(acknowledged), "leaderless": 0}


def _acknowledged(
    sim: Simulation, writers: list[Writer]
) -> tuple[dict[int, str], dict[int, list[str]]]:
    """The versions whose writers were told so, and their pieces."""
    acknowledged: dict[int, str] = {}
    pieces: dict[int, list[str]] = {}
    for writer in writers:
        for number, uid in writer.acknowledged.items():
            assert acknowledged.setdefault(number, uid) == uid, f"version {number} is two commits"
            assert sim.decided.get(number, uid) == uid
        pieces.update(writer.pieces)
    return acknowledged, pieces


def _knows_nobody(process: Process) -> bool:
    """Whether all holders that a joiner knew had ended before it was let in."""
    known = [process.sim.processes[name] for name in process.node.replica.current()]
    return not any(other.alive and other.node.replica.epoch for other in known)


def _check_versions(
    sim: Simulation, catalog: Any, living: list[Process], acknowledged: Any, pieces: Any
) -> None:
    if acknowledged:
        assert catalog.newest >= max(acknowledged), "an acknowledged version was forgotten"
    numbers = sorted({*catalog.versions, *acknowledged})
    for number in numbers[-sim.keep :]:
        if number in pieces and number not in catalog.versions:
            gone = [q for q in pieces[number] if not any(q in p.memory for p in living)]
            newer = sum(n > number for n in sim.decided)
            assert gone or newer >= sim.keep, f"version {number} was lost, and its copies live"
    assert len(catalog.versions) <= sim.keep, "versions are not retired"
    for number in catalog.versions:
        assert not catalog.unreadable(number)


def _check_holders(sim: Simulation, leader: Any, living: list[Process]) -> None:
    catalog = leader.replica.catalog
    wanted = catalog.wanted_copies()
    for pid, copies in catalog.copies.items():
        assert len(copies) >= wanted, f"{pid} has {len(copies)} copies of {wanted}"
        for holder in copies:
            assert pid in sim.processes[holder].memory
    for process in living:
        assert process.node.replica.catalog.snapshot() == catalog.snapshot()
        assert set(process.memory) == set(process.node.places)
        extra = [p for p in process.memory if process.name not in catalog.copies.get(p, {})]
        assert not extra, f"{process.name} leaks {extra}"
        assert not process.node._pins


@pytest.mark.parametrize("block", range(8))
def test_holders_agree_whatever_happens(block: int) -> None:
    acknowledged = read = leaderless = 0
    each = SEEDS // 8
    for seed in range(block * each, (block + 1) * each):
        try:
            result = run_seed(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        acknowledged += result["acknowledged"]
        read += result["read"]
        leaderless += result["leaderless"]
    assert acknowledged > each and read > each
    assert leaderless < each * 0.2


def test_copies_that_a_loss_takes_are_replaced_at_once() -> None:
    """Also if the leader has just found that no copy was lacking."""
    sim = Simulation(1, ["a", "b", "c"], keep=2, replicas=1)
    leader = sim.processes["p0"].node.replica
    writer = Writer(sim.processes["p0"], 3)
    writer.process.run(writer.commit)
    while not writer.acknowledged:
        sim.run(0.01)
    sim.run(0.15)  # a tick later the leader has looked
    copies = next(iter(leader.catalog.copies.values()))
    sim.kill(next(holder for holder in copies if holder != "p0"))
    sim.run(0.35)  # the end is noticed, and a tick and a pull later the copies are there
    assert len(leader.catalog.members) == 2
    assert not leader.catalog.lacking()


def test_copies_are_made_though_others_wait_for_a_holder_that_is_cut_off() -> None:
    """While holders make new copies from another one, that is cut off. The copies that it had are
    made too, without a wait for it."""
    sim = Simulation(7, list("abcd"), 2, 1)
    for name in ("p1", "p2"):
        writer = Writer(sim.processes[name], 8)
        writer.process.run(writer.commit)
        sim.run(1.0)
        assert writer.acknowledged
    leader = sim.processes["p0"].node
    assert leader.directory is not None
    sim.kill("p3")
    while not leader.directory._refilling:
        sim.run(0.001)
    sim.cuts |= {frozenset("ab"), frozenset("bc")}
    sim.run(12.0)
    catalog = leader.replica.catalog
    assert list(catalog.members) == ["p0", "p2"]
    assert {len(copies) for copies in catalog.copies.values()} == {0, 2}
    sim.cuts.clear()
    sim.run(12.0)
    assert list(catalog.members) == ["p0", "p2", "p1"]
    assert all(len(copies) >= 2 for copies in catalog.copies.values())
