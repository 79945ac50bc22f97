"""Who gets which shards: even, on different hosts, and changes come to an end."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from ringcoll.weights import table_leading, table_placement
from ringcoll.weights.catalog_tables import Tables, new_record
from ringcoll.weights.table_placement import Loads, Planner, Weigh


def _plain(uid: str, index: int) -> int:
    return 1


def _servers(hosts: str) -> dict[str, Any]:
    return {f"s{i}": {"host": host} for i, host in enumerate(hosts)}


def _make(tables: Tables, name: str, count: int, servers: dict[str, Any], wanted: int) -> None:
    loads = Loads(tables.records, _plain)
    holders = table_placement.place(name, count, servers, wanted, loads)
    record = new_record({"name": name}, name, [], holders)
    tables.make({"name": name, "record": record}, servers)


def _settle(tables: Tables, servers: dict[str, Any], wanted: int, weigh: Weigh = _plain) -> int:
    """Makes all changes that are planned. Returns how many there were."""
    for changes in range(2000):
        steps = list(Planner(tables.view(), servers, wanted, weigh).steps(4))
        assert sum(step.filling is not None for step in steps) <= 4
        if not steps:
            return changes
        for step in steps:
            _change(tables, servers, step.table, step.shard, step.holders, step.filling)
            if step.filling is not None:
                _change(
                    tables, servers, step.table, step.shard, [*step.holders, step.filling], None
                )
    raise AssertionError("changes do not come to an end")


def _change(
    tables: Tables, servers: Any, name: str, index: int, holders: list[str], filling: Any
) -> None:
    shard = tables.records[name]["shards"][index]
    operation = {"table": name, "uid": name, "shard": index, "epoch": shard["epoch"]}
    tables.change(operation | {"holders": holders, "filling": filling}, servers)


def _primaries(tables: Tables, name: str) -> Counter[str]:
    return Counter(shard["holders"][0] for shard in tables.records[name]["shards"])


def _check(tables: Tables, servers: dict[str, Any], wanted: int) -> None:
    hosts = {info["host"] for info in servers.values()}
    for name, record in tables.records.items():
        counts = [_primaries(tables, name)[server] for server in servers]
        assert max(counts) - min(counts) <= 1, counts
        for shard in record["shards"]:
            assert len(shard["holders"]) == wanted
            there = {servers[holder]["host"] for holder in shard["holders"]}
            assert len(there) == min(wanted, len(hosts))


def test_new_tables_are_spread() -> None:
    tables, servers = Tables(), _servers("aabbc")
    for name, count in (("one", 1), ("two", 2), ("some", 13), ("many", 40)):
        _make(tables, name, count, servers, 2)
    _check(tables, servers, 2)
    total: Counter[str] = Counter()
    for name in tables.records:
        total += _primaries(tables, name)
    assert max(total.values()) - min(total.values()) <= 1
    assert _settle(tables, servers, 2) <= 1, "what was just made is changed again"


def test_small_tables_move_to_new_servers_too() -> None:
    tables, servers = Tables(), _servers("a")
    for index in range(6):
        _make(tables, f"t{index}", 1, servers, 1)
    servers = _servers("abc")
    _settle(tables, servers, 1)
    total = sum((_primaries(tables, name) for name in tables.records), Counter[str]())
    assert sorted(total.values()) == [2, 2, 2]


def test_busy_shards_are_separated() -> None:
    tables, servers = Tables(), _servers("ab")
    _make(tables, "t", 8, servers, 1)
    on_first = [i for i, s in enumerate(tables.records["t"]["shards"]) if s["holders"] == ["s0"]]
    busy = set(on_first[:2])
    _settle(tables, servers, 1, lambda uid, index: 4 if index in busy else 1)
    holders = {tables.records["t"]["shards"][index]["holders"][0] for index in busy}
    assert holders == {"s0", "s1"}


@pytest.mark.parametrize("seed", range(40))
def test_changes_end_whoever_comes_and_goes(seed: int) -> None:
    rng = random.Random(seed)
    tables, servers = Tables(), _servers("abcabc"[: rng.randint(1, 6)])
    for index in range(rng.randint(1, 3)):
        _make(tables, f"t{index}", rng.randint(1, 20), servers, rng.randint(1, len(servers)))
    for step in range(8):
        if rng.random() < 0.5 and len(servers) > 1:
            gone = rng.choice(sorted(servers))
            del servers[gone]
            tables.remove([gone], [])
            tables.add(gone, {name: {str(i): 1 for i in range(20)} for name in tables.records})
            if any(gone in s["holders"] for r in tables.records.values() for s in r["shards"]):
                servers[gone] = {"host": "a"}  # it was the only holder, and is back
        else:
            servers[f"n{step}"] = {"host": rng.choice("abcd")}
        wanted = rng.randint(1, min(3, len(servers)))
        weights = {("t0", index): rng.choice([1, 2, 8]) for index in range(20)}
        _settle(tables, servers, wanted, lambda uid, index, w=weights: w.get((uid, index), 1))
        _settle(tables, servers, wanted)
        _check(tables, servers, wanted)


def test_the_number_of_shards() -> None:
    assert table_placement.shard_count(3, None) == 12
    assert table_placement.shard_count(100, None) == 256
    assert table_placement.shard_count(3, 5) == 5


def test_replicas_that_are_wanted() -> None:
    assert table_placement.wanted_holders(_servers("aa"), None) == 1
    assert table_placement.wanted_holders(_servers("ab"), None) == 2
    assert table_placement.wanted_holders(_servers("ab"), 3) == 2
    assert table_placement.wanted_holders({}, None) == 0


def test_what_counts_as_busy() -> None:
    assert table_leading.weights_of({("t", 0): 5, ("t", 1): 50}) == {}, "too few to matter"
    uses = {("t", index): 1000 for index in range(9)} | {("t", 9): 20000}
    assert table_leading.weights_of(uses) == {("t", 9): 4}
    assert table_leading.weights_of({("t", 0): 10000, ("t", 1): 9000}) == {}
