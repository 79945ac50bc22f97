"""Shards of tables in a simulated network with kills, stops, cuts and joins, for many seeds."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
from simulation import Process
from table_simulation import TableSimulation

from ringcoll.weights import table_placement
from ringcoll.weights.catalog_tables import is_lost

SEEDS = int(os.environ.get("RINGCOLL_TEST_SEEDS", "160"))


def _fault(sim: TableSimulation, rng: random.Random, joined: list[int]) -> None:
    living = [p for p in sim.processes.values() if p.alive]
    choice = rng.random()
    victim = rng.choice(living).name
    if choice < 0.2 and len(living) > 2:
        sim.kill(victim)
    elif choice < 0.45:
        sim.stop(victim)
        sim.at(rng.choice([0.5, 3.0, 9.0, 20.0]), lambda: sim.resume(victim))
    elif choice < 0.7:
        hosts = sorted({p.host for p in sim.processes.values()})
        cut = frozenset(rng.sample(hosts, 2)) if len(hosts) > 1 else frozenset(hosts)
        sim.cuts.add(cut)
        sim.at(rng.choice([0.5, 3.0, 9.0, 20.0]), lambda: sim.cuts.discard(cut))
    elif len(joined) < 3:
        joined.append(1)
        sim.join(f"j{len(joined)}", rng.choice(["a", "b", "c"]))


def run_seed(seed: int) -> dict[str, int]:
    """One history. Raises AssertionError if something is wrong in it."""
    rng = random.Random(seed)
    count = rng.choice([1, 2, 3, 3, 4, 5])
    hosts = [rng.choice(["a", "b", "c"]) for _ in range(count)]
    sim = TableSimulation(seed, hosts, 2, rng.choice([None, None, 0, 1, 2]))
    names = {f"t{n}": rng.choice([None, 1, 3, 8]) for n in range(rng.choice([1, 2, 3]))}
    joined: list[int] = []
    quiet = rng.random() < 0.2
    for step in range(rng.choice([10, 20, 40])):
        living = [p for p in sim.processes.values() if p.alive]
        if step < 2:
            for name, shards in names.items():
                sim.make_table(rng.choice(living), name, shards)
        if step == 8 and len(names) > 1:
            sim.drop_table(rng.choice(living), "t1")
        sim.push_all(0.5)
        if not quiet and rng.random() < 0.25:
            _fault(sim, rng, joined)
        sim.run(rng.choice([0.05, 0.2, 1.0]))
    for process in sim.processes.values():
        if process.stopped:
            sim.resume(process.name)
    sim.cuts.clear()
    sim.run(90.0)
    return _check_end(sim)


def _check_end(sim: TableSimulation) -> dict[str, int]:
    living = [p for p in sim.processes.values() if p.alive]
    leading = [p for p in living if p.node.replica.leads]
    counts = {
        "pushes": sum(map(len, sim.acknowledged.values())),
        "pulls": sim.pulls,
        "lost": sim.lost,
        "dropped": sim.dropped,
    }
    if len(leading) != 1 or not leading[0].node.replica.idle():
        return counts | {"settled": 0, "moves": 0}
    replica = leading[0].node.replica
    view = replica.tables(replica.committed)
    servers = table_placement.servers_of(replica.catalog.members)
    wanted = table_placement.wanted_holders(servers, replica.catalog.replicas)
    moves = 0
    for record in view.values():
        loads = dict.fromkeys(servers, 0)
        lost = 0
        for index, shard in enumerate(record["shards"]):
            if is_lost(shard):
                lost += 1
                continue
            moves += shard["epoch"] - 1
            _check_shard(sim, living, (record["uid"], index), shard, wanted)
            loads[shard["holders"][0]] += 1
        assert lost or max(loads.values()) - min(loads.values()) <= 1, loads
    there = {record["uid"] for record in view.values()}
    for process in living:
        assert not [key for key in process.copies if key[0] not in there], "a shard is left over"
    return counts | {"settled": 1, "moves": moves}


def _check_shard(
    sim: TableSimulation, living: list[Process], key: Any, shard: Any, wanted: int
) -> None:
    assert len(shard["holders"]) == wanted, f"{key} has {shard}, wanted {wanted}"
    assert shard["filling"] is None and not shard["away"]
    hosts = {sim.processes[holder].host for holder in shard["holders"]}
    there = {process.host for process in living}
    assert len(hosts) == min(wanted, len(there)), f"{key} is on {hosts} of {there}"
    for holder in shard["holders"]:
        missing = sim.acknowledged.get(key, set()) - sim.processes[holder].copies[key].pushes
        assert not missing, f"{holder} has lost pushes of {key}"
    primary = sim.processes[shard["holders"][0]]
    assert len(shard["holders"]) == 1 or sim.now < primary.serves_until, f"{key} is not answered"
    having = {process.name for process in living if key in process.copies}
    assert having == set(shard["holders"]), f"{key} is at {having}, not at {shard['holders']}"


@pytest.mark.parametrize("block", range(8))
def test_acknowledged_pushes_stay_whatever_happens(block: int) -> None:
    totals: dict[str, int] = {}
    each = SEEDS // 8
    for seed in range(block * each, (block + 1) * each):
        try:
            result = run_seed(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        for name, value in result.items():
            totals[name] = totals.get(name, 0) + value
    assert min(totals["pushes"], totals["pulls"]) > each
    assert totals["moves"] > 0 and totals["dropped"] > 0
    assert totals["settled"] > each * 0.8
