"""Rules in Python, other rules and values that are set, with the library's own servers. Threads are
the ranks of a store, on one host."""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy
import pytest

import ringcoll
from ringcoll import _core, rules
from ringcoll.errors import InvalidArgument, Mismatch
from ringcoll.tables import native
from ringcoll.weights import agents

_names = itertools.count()
Open = Callable[..., list[ringcoll.Store]]


@pytest.fixture
def stores() -> Iterator[Open]:
    """Makes the stores of so many ranks."""
    made: list[ringcoll.Store] = []

    def open_stores(size: int, **settings: Any) -> list[ringcoll.Store]:
        place = f"local://rules{next(_names)}"

        def open_one(rank: int) -> ringcoll.Store:
            world = ringcoll.Communicator(_core.Comm(rank, size, place, "world"), "world")
            return ringcoll.Store("weights", world, timeout=30, **settings)

        with ThreadPoolExecutor(size) as pool:
            made.extend(pool.map(open_one, range(size)))
        return made

    yield open_stores
    for store in made:
        store.close()


class Counting:
    """Adds the push as often as the key was updated before, and once more. It refuses pushes below
    zero."""

    def __init__(self) -> None:
        self.calls: dict[int, int] = {}

    def __call__(self, key: int, value: numpy.ndarray, push: numpy.ndarray) -> None:
        self.calls[key] = self.calls.get(key, 0) + 1
        value += self.calls[key] * push
        if push.min() < 0:
            raise ValueError(f"the push of {key} is below zero")


def lamb_like(key: int, value: numpy.ndarray, push: numpy.ndarray) -> None:
    """The length of a step depends on the whole tensor."""
    assert key == 0
    value -= push * (numpy.linalg.norm(value) / numpy.linalg.norm(push))


def add(key: int, value: numpy.ndarray, push: numpy.ndarray) -> None:
    assert value.dtype == push.dtype
    value += push


def test_a_rule_has_a_state(stores: Open) -> None:
    table = stores(1)[0].table("t", row_shape=(2,), rule=rules.Python(Counting()))
    ones = numpy.ones((2, 2), "float32")
    for total in (1, 3, 6):
        table.push([5, 7], ones)
        assert table.pull([5, 7]).tolist() == [[total] * 2] * 2
    table.push([7, 7], ones)  # counts as one
    assert table.pull([7]).tolist() == [[14, 14]]
    assert table.info()["rules"] == ["custom"]


def test_a_rule_travels_with_its_state(stores: Open) -> None:
    one, two = stores(2, replicas=1)
    with ThreadPoolExecutor(2) as pool:
        rule = rules.Python(Counting())
        table, other = pool.map(
            lambda store: store.table("t", row_shape=1, rule=rule, shards=1), (one, two)
        )
    for _ in range(3):
        table.push([5], numpy.ones((1, 1), "float32"))
    primary = next(store for store in (one, two) if _leads(store))
    remaining, left = (other, two) if primary is one else (table, one)
    primary.close()
    remaining.push([5], numpy.ones((1, 1), "float32"))
    assert remaining.pull([5]).tolist() == [[1 + 2 + 3 + 4]]
    assert _leads(left)


def _leads(store: ringcoll.Store) -> bool:
    serving = store._control.tables._serving
    shards = json.loads(serving._server.stats())["shards"] if serving._server else []
    return any(shard["role"] == "leads" for shard in shards)


def test_a_push_for_which_a_rule_raises_changes_no_row(stores: Open) -> None:
    table = stores(1)[0].table("t", row_shape=1, rule=rules.Python(Counting()), shards=1)
    with pytest.raises(InvalidArgument, match=r"row 6: .*ValueError: the push of 6 is below zero$"):
        table.push([5, 6], numpy.array([[1], [-1]], "float32"))
    assert table.pull([5, 6]).tolist() == [[0], [0]]
    assert table.info()["failed"] == 1
    table.push([6], numpy.ones((1, 1), "float32"))
    assert table.pull([6]).tolist() == [[2]]


def test_at_the_end_of_a_clock_only_the_row_for_which_it_raises_stays(stores: Open) -> None:
    table = stores(1)[0].table("t", row_shape=1, rule=rules.Python(Counting()), staleness=0)
    table.push([5, 6], numpy.array([[1], [-1]], "float32"))
    assert table.tick() == 1
    assert table.pull([5, 6]).tolist() == [[1], [0]]
    assert table.info()["failed"] == 1


def test_a_rule_gets_a_whole_tensor(stores: Open) -> None:
    start = numpy.random.default_rng(1).standard_normal((300, 200)).astype("float32")
    push = numpy.random.default_rng(2).standard_normal((300, 200)).astype("float32")
    wanted = start.copy()
    lamb_like(0, wanted, push)
    store = stores(1)[0]
    table = store.table("made", start.shape, rule=rules.Python(lamb_like))
    later = store.table("later", start.shape, shards=1)
    later.set_rule(rules.Python(lamb_like))
    for each in table, later:
        each.assign(None, start)
        each.push(None, push)
        assert numpy.array_equal(each.pull(), wanted)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int32"])
def test_a_rule_gets_values_of_the_table_s_type(stores: Open, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    table = stores(1)[0].table("t", 3, dtype=dtype, rule=rules.Python(add))
    push = torch.tensor([1, 3, 257]).to(getattr(torch, dtype))
    out = torch.empty_like(push)
    for times in (1, 2):
        table.push(None, push)
        assert torch.equal(table.pull(None, out), push * times)


def test_a_server_without_the_module_hosts_nothing() -> None:
    world = ringcoll.Communicator(_core.Comm(0, 1, f"local://rules{next(_names)}", "w"), "w")
    server = native.make_server(agents.agent_of(world))
    rule = rules.Python(b"cno_such_module\nrule\n.")
    spec = {"name": "t", "dtype": "float32", "row_shape": [1], "rule": json.loads(rule.spec())}
    with pytest.raises(InvalidArgument, match=r"table t: .*No module named 'no_such_module'"):
        server.host("uid", json.dumps(spec), 0, 1, [])
    server.close()


def test_another_rule_keeps_values(stores: Open) -> None:
    store = stores(1)[0]
    table = store.table("t", row_shape=1, rule=rules.Assign("sum"))
    ones = numpy.ones((2, 1), "float32")
    table.push([1, 1], ones)
    assert table.pull([1]).tolist() == [[2]]
    table.set_rule(rules.SGD(lr=1, momentum=0.5))
    for total in (1, -0.5):
        table.push([1], ones[:1])
        assert table.pull([1]).tolist() == [[total]]
    table.set_rule(rules.SGD(lr=2, momentum=0.5))  # goes on with its momentum
    table.push([1], ones[:1])
    assert table.pull([1]).tolist() == [[-0.5 - 2 * 1.75]]
    assert store.table("t", row_shape=1, rule=rules.Assign("sum")) is table
    with pytest.raises(Mismatch, match="rule="):
        store.table("t", row_shape=1, rule=rules.SGD(lr=2, momentum=0.5))
    table.set_rule(rules.WeightedAverage())
    table.push([2], ones[:1], weight=2.0)
    table.push([2], 4 * ones[:1], weight=1.0)
    assert table.pull([2]).tolist() == [[2]]


def test_a_large_rule_comes_later(stores: Open) -> None:
    table = stores(1)[0].table("t", row_shape=1)
    table.push([1], numpy.ones((1, 1), "float32"))
    rule = Counting()
    rule.calls = dict.fromkeys(range(100000), 7)  # more than travels in one message
    table.set_rule(rules.Python(rule))
    table.push([1, 100_000], numpy.ones((2, 1), "float32"))
    assert table.pull([1, 100_000]).tolist() == [[9], [1]]


def test_values_are_set_past_clocks_and_rules(stores: Open) -> None:
    table = stores(1)[0].table("t", row_shape=2, staleness=0)
    table.push([1], numpy.ones((1, 2), "float32"))
    table.assign([1, 2], numpy.full((2, 2), 5, "float32"))
    assert table.pull([1, 2]).tolist() == [[5, 5], [5, 5]]
    table.tick()
    assert table.pull([1, 2]).tolist() == [[6, 6], [5, 5]]


def test_what_is_no_rule() -> None:
    assert rules.Python(pickle.dumps(add)) == rules.Python(add)
    with pytest.raises(InvalidArgument, match="it is no function"):
        rules.Python("add")
    with pytest.raises(InvalidArgument, match="cannot be pickled"):
        rules.Python(lambda key, value, push: None)
