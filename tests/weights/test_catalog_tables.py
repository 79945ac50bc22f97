"""Tables in the catalog, and what the leader does with requests about them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ringcoll.errors import Gone
from ringcoll.weights.catalog import Catalog
from ringcoll.weights.catalog_tables import is_lost, new_record
from ringcoll.weights.directory import Directory
from ringcoll.weights.replica import Replica

Out = list[tuple[str, dict[str, Any]]]


def _catalog(holders: str = "abc", **settings: Any) -> Catalog:
    members = {name: {"addresses": [], "host": name, "leaf": ""} for name in holders}
    return Catalog(members, **settings)


def _with_table(catalog: Catalog, *shards: list[str]) -> Catalog:
    record = new_record({"name": "t"}, "u", [], list(shards))
    catalog.apply({"op": "table", "name": "t", "record": record})
    return catalog


def _shard(catalog: Catalog, index: int = 0) -> Any:
    return catalog.tables.records["t"]["shards"][index]


def _change(catalog: Catalog, epoch: int, holders: list[str], filling: str | None = None) -> Any:
    operation = {"op": "shard", "table": "t", "uid": "u", "shard": 0, "epoch": epoch}
    catalog.apply(operation | {"holders": holders, "filling": filling})
    return _shard(catalog)


def _remove(catalog: Catalog, ended: str = "", silent: str = "") -> Any:
    catalog.apply({"op": "remove", "ended": list(ended), "silent": list(silent)})
    return _shard(catalog)


def _add(catalog: Catalog, holder: str, shards: Any) -> Any:
    info = {"addresses": [], "host": holder, "leaf": ""}
    operation = {"op": "add", "id": holder, "info": info, "copies": {}, "regions": {}}
    catalog.apply(operation | {"shards": shards})
    return _shard(catalog)


def test_a_change_counts_only_at_its_epoch() -> None:
    catalog = _with_table(_catalog(), ["a"])
    assert _change(catalog, 1, ["a"], "b") == {
        "epoch": 2,
        "since": 1,
        "holders": ["a"],
        "filling": "b",
        "away": [],
    }
    assert _change(catalog, 1, ["c"])["holders"] == ["a"]
    assert _change(catalog, 3, ["c"])["holders"] == ["a"]
    assert _change(catalog, 2, ["a", "b"])["holders"] == ["a", "b"]
    assert _change(catalog, 3, ["a", "b"])["epoch"] == 3, "nothing has changed"


def test_holders_that_have_left_meanwhile_do_not_count() -> None:
    catalog = _with_table(_catalog(), ["a"])
    _remove(catalog, ended="b")
    assert _change(catalog, 1, ["a"], "b")["epoch"] == 1
    record = new_record({"name": "x"}, "x", [], [["a"], ["b"]])
    catalog.apply({"op": "table", "name": "x", "record": record})
    assert list(catalog.tables.records) == ["t"]


def test_the_first_remaining_holder_becomes_the_primary() -> None:
    catalog = _with_table(_catalog(), ["a", "b"])
    _change(catalog, 1, ["a", "b"], "c")
    state = _remove(catalog, silent="a")
    assert state == {"epoch": 3, "since": 3, "holders": ["b"], "filling": "c", "away": []}
    assert _add(catalog, "a", {"u": {"0": 2}})["holders"] == ["b"], "what it has is old"
    assert _remove(catalog, ended="c") == {
        "epoch": 4,
        "since": 3,
        "holders": ["b"],
        "filling": None,
        "away": [],
    }


def test_a_holder_that_is_being_filled_is_no_replacement() -> None:
    catalog = _with_table(_catalog(), ["a"])
    _change(catalog, 1, ["a"], "b")
    assert is_lost(_remove(catalog, ended="a"))


def test_a_shard_waits_for_its_silent_holder() -> None:
    catalog = _with_table(_catalog(), ["a"])
    assert _remove(catalog, silent="a")["away"] == ["a"] and not is_lost(_shard(catalog))
    assert _add(catalog, "a", {"u": {"0": 1}}) == {
        "epoch": 3,
        "since": 3,
        "holders": ["a"],
        "filling": None,
        "away": [],
    }


def test_a_holder_that_comes_back_without_its_shard() -> None:
    for shards in ({}, {"u": {"0": 7}}, {"other": {"0": 1}}):
        catalog = _with_table(_catalog(), ["a"])
        _remove(catalog, silent="a")
        assert is_lost(_add(catalog, "a", shards))


def test_the_first_of_two_silent_holders_that_comes_back() -> None:
    catalog = _with_table(_catalog(), ["a", "b"])
    assert _remove(catalog, silent="ba")["away"] == ["a", "b"]
    catalog.apply({"op": "forget", "ids": ["a"]})
    assert not is_lost(_shard(catalog))
    assert _add(catalog, "b", {"u": {"0": 1}})["holders"] == ["b"]
    _remove(catalog, silent="b")
    catalog.apply({"op": "forget", "ids": ["b"]})
    assert is_lost(_shard(catalog))


def test_snapshots_have_tables() -> None:
    catalog = _with_table(_catalog(), ["a"], ["b", "c"])
    state = catalog.snapshot()
    again = Catalog.from_snapshot(json.loads(json.dumps(state)))
    assert again.snapshot() == state and again.tables.records == catalog.tables.records
    view = again.tables.view()
    _change(again, 1, ["a"], "b")
    assert view == catalog.tables.records, "a view does not change"
    assert Catalog.from_snapshot(_catalog().snapshot()).tables.records == {}


def test_a_name_is_dropped_by_its_uid_alone() -> None:
    catalog = _with_table(_catalog(), ["a"])
    catalog.apply({"op": "drop_table", "name": "t", "uid": "other"})
    assert "t" in catalog.tables.records
    catalog.apply({"op": "drop_table", "name": "t", "uid": "u"})
    assert not catalog.tables.records


def test_only_what_is_committed_is_acted_on() -> None:
    replica = Replica("a", _catalog("ab"), "a", 0.0, 0.0)
    record = new_record({"name": "t"}, "u", [], [["a"]])
    replica.propose(0.0, {"op": "table", "name": "t", "record": record})
    assert replica.catalog.tables.records and replica.tables(replica.committed) == {}
    replica.receive(0.1, "b", {"k": "ack", "e": replica.epoch, "i": replica.index})
    view = replica.tables(replica.committed)
    assert view["t"]["uid"] == "u" and replica.tables(replica.committed) is view


class Leader:
    """A leader alone, and what it sends."""

    def __init__(self, **settings: Any) -> None:
        self.replica = Replica("a", _catalog("a", **settings), "a", 0.0, 0.0)
        self.out: Out = []
        self.directory = Directory(self.replica, self.out, 0.0)
        self.now = 0.0
        self.number = 0

    def ask(self, client: str, message: dict[str, Any]) -> dict[str, Any]:
        self.number += 1
        self.directory.request(self.now, client, message | {"r": self.number})
        self.run(0.0)
        return next(m for to, m in self.out if to == client and m.get("a") == self.number)

    def make(self, client: str = "x", **change: Any) -> dict[str, Any]:
        message: dict[str, Any] = {"q": "table", "name": "t", "spec": {"name": "t", "n": 1}}
        message |= {"uid": client, "workers": [], "shards": None, "rows": None}
        return self.ask(client, message | change)

    def run(self, seconds: float) -> None:
        self.now += seconds
        if any(event == ("commit",) for event in self.replica.events):
            self.replica.events.clear()
            self.directory.committed(self.now)
        self.directory.tick(self.now)

    def hear(self, source: str, message: dict[str, Any]) -> None:
        self.directory.hear(self.now, source, message)
        self.run(0.0)

    def told(self, client: str) -> list[Any]:
        return [m["table"] for to, m in self.out if to == client and m.get("push") == "table"]


def test_clients_that_have_asked_are_told_of_changes() -> None:
    leader = Leader()
    made = leader.make("x")["table"]
    assert made["uid"] == "x" and len(made["shards"]) == 4
    assert leader.make("y")["table"]["uid"] == "x"
    _join(leader, "b")
    leader.run(1.0)
    filling = [shard for shard in leader.told("x")[-1]["shards"] if shard["filling"]]
    assert filling and leader.told("x") == leader.told("y") and not leader.told("z")
    assert leader.ask("z", {"q": "tables"})["tables"] == ["t"]
    leader.ask("x", {"q": "drop_table", "name": "t"})
    assert leader.told("y")[-1] == {"uid": "x", "dropped": True}


def _join(leader: Leader, holder: str) -> None:
    """Another holder joins, and acknowledges all that comes."""
    info = {"addresses": [], "host": "a", "leaf": ""}
    leader.hear(holder, {"k": "join", "info": info, "copies": {}, "regions": {}})
    original = leader.run

    def run(seconds: float) -> None:
        replica = leader.replica
        while not replica.idle():
            replica.receive(
                leader.now, holder, {"k": "ack", "e": replica.epoch, "i": replica.index}
            )
        original(seconds)
        while not replica.idle():
            replica.receive(
                leader.now, holder, {"k": "ack", "e": replica.epoch, "i": replica.index}
            )
        original(0.0)

    leader.run = run  # type: ignore[method-assign]
    leader.run(0.0)


def test_shards_are_filled_and_moved() -> None:
    leader = Leader()
    leader.make()
    _join(leader, "b")
    for _ in range(20):
        leader.run(0.3)
        records = leader.replica.catalog.tables.records
        for index, shard in enumerate(records["t"]["shards"]):
            if shard["filling"]:
                message = {"k": "filled", "uid": "x", "shard": index, "holder": "b"}
                leader.hear("a", message | {"epoch": shard["epoch"] - 1})
                assert leader.replica.catalog.tables.records["t"]["shards"][index] is shard
                leader.hear("a", message | {"epoch": shard["epoch"]})
    holders = [s["holders"] for s in leader.replica.catalog.tables.records["t"]["shards"]]
    assert sorted(holders) == [["a"], ["a"], ["b"], ["b"]]


def test_a_server_that_cannot_be_filled_is_not_asked_again_at_once() -> None:
    leader = Leader()
    leader.make(shards=2)
    _join(leader, "b")
    leader.run(0.3)

    def filling() -> list[int]:
        shards = leader.replica.catalog.tables.records["t"]["shards"]
        return [index for index, shard in enumerate(shards) if shard["filling"] == "b"]

    (first,) = filling()
    shard = leader.replica.catalog.tables.records["t"]["shards"][first]
    message = {"k": "apart", "uid": "x", "shard": first, "epoch": shard["epoch"], "holder": "b"}
    leader.hear("b", message)
    leader.run(0.3)
    assert filling() == [1 - first], "the other shard may do"
    leader.run(6.0)
    assert len(filling()) == 1


def test_a_backup_that_its_primary_cannot_reach_goes() -> None:
    leader = Leader(replicas=1)
    leader.make(shards=1)
    _join(leader, "b")
    leader.run(0.3)
    message = {"uid": "x", "shard": 0, "holder": "b"}
    leader.hear("a", {"k": "filled", "epoch": 2} | message)
    state = leader.replica.catalog.tables.records["t"]["shards"][0]
    assert state["holders"] == ["a", "b"] and state["epoch"] == 3
    leader.hear("a", {"k": "apart", "epoch": 2} | message)
    assert leader.replica.catalog.tables.records["t"]["shards"][0] is state
    leader.hear("a", {"k": "apart", "epoch": 3} | message)
    assert leader.replica.catalog.tables.records["t"]["shards"][0]["holders"] == ["a"]


def test_another_description_names_what_differs() -> None:
    leader = Leader()
    leader.make()
    kind, text, _ = leader.make("y", spec={"name": "t", "n": 2})["error"]
    assert kind == "Mismatch" and "n=1" in text and "n=2" in text
    kind, text, _ = leader.make("y", shards=9)["error"]
    assert kind == "Mismatch" and "shards=4" in text and "shards=9" in text
    assert "error" not in leader.make("y", spec=None)


def test_what_is_dropped_already() -> None:
    leader = Leader()
    leader.make()
    drop = {"q": "drop_table", "name": "t"}
    assert "error" not in leader.ask("x", drop | {"uid": "x"})
    assert "error" not in leader.ask("x", drop | {"uid": "x"}), "sent again"
    assert leader.ask("x", drop)["error"][0] == Gone.code


def test_a_leader_that_is_replaced_leaves_requests_to_the_next() -> None:
    leader = Leader()
    _join(leader, "b")
    request = {"q": "table", "name": "t", "spec": {"name": "t"}, "uid": "u", "workers": []}
    request |= {"shards": None, "rows": None}
    leader.directory.request(leader.now, "x", request | {"r": 77})
    assert ("x", 77) in leader.directory.close()


def test_clients_of_tables_hear_that_the_leader_is_replaced() -> None:
    leader = Leader()
    leader.make("x")
    leader.directory.close()
    assert ("x", {"push": "moved"}) in leader.out


@pytest.mark.parametrize("spec", [None, {"name": "t"}])
def test_a_new_leader_answers_when_it_knows_the_last_commit(spec: Any) -> None:
    leader = Leader()
    leader.replica._installed = leader.replica.index + 1
    leader.replica.configurations = [(0, ["a", "b", "c"])]
    request = {"q": "table", "name": "t", "spec": spec, "uid": "u", "workers": []}
    assert leader.ask("x", request | {"shards": None, "rows": None})["wait"]
