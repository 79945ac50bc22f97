"""Tables as programs use them: stores on simulated agents, with servers and clients that are
fakes."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
from fake_tables import FakeTables
from stores import Cluster, FakeFactory, wait_until

from ringcoll import rules
from ringcoll.errors import Aborted, Gone, InvalidArgument, Mismatch, Timeout
from ringcoll.tables import serving
from ringcoll.tables.arguments import Layout
from ringcoll.tables.numbers import client_number, is_guest, server_number
from ringcoll.tables.spec import describe, rows_of
from ringcoll.weights import table_leading
from ringcoll.weights.store import Store

Make = Callable[..., Cluster]


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> FakeTables:
    return FakeTables.install(monkeypatch)


@pytest.fixture
def make(fakes: FakeTables) -> Iterator[Make]:
    made: list[Cluster] = []

    def make(hosts: str, **settings: Any) -> Cluster:
        made.append(Cluster(FakeFactory(), list(hosts), **settings))
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()


def _record(store: Store, name: str) -> Any:
    """What the catalog of a holder says."""
    node = store._control.node
    assert node is not None
    with store._control.lock:
        return node.replica.tables(node.replica.committed)[name]


def _by(cluster: Cluster) -> Callable[[str], int]:
    """The order of holders by the ranks of their stores."""
    return [store._me for store in cluster.stores].index


def _wait_settled(store: Store, name: str, wanted: int, servers: int) -> Any:
    """Waits until a table's shards have their holders, and as many of them each."""

    def settled() -> Any:
        record = _record(store, name)
        loads: dict[str, int] = {}
        for shard in record["shards"]:
            if len(shard["holders"]) != wanted or shard["filling"] is not None:
                return None
            loads[shard["holders"][0]] = loads.get(shard["holders"][0], 0) + 1
        even = max(loads.values()) - min(loads.values()) <= 1
        return record if len(loads) == servers and even else None

    return wait_until(settled)


def test_all_ranks_and_a_guest_share_a_sparse_table(make: Make) -> None:
    cluster = make("aab")
    tables = cluster.all(lambda rank, store: store.table("rows", row_shape=2))
    guest = cluster.guest().table("rows")
    ids = [5, -3, 1 << 62]
    for rank, table in enumerate(tables):
        table.push(ids, numpy.full((3, 2), 10.0**rank, "float32"))
    guest.push(ids[:1], numpy.ones((1, 2), "float32"))
    assert guest.pull(ids).tolist() == [[112, 112], [111, 111], [111, 111]]
    assert tables[0].pull([7]).tolist() == [[0, 0]]
    out = numpy.empty((1, 2), "float32")
    assert tables[1].push_pull([7], numpy.ones((1, 2), "float32"), out) is out
    assert out.tolist() == [[1, 1]]
    assert cluster.stores[2].tables() == ["rows"]


def test_a_dense_table_is_a_tensor(make: Make) -> None:
    cluster = make("a")
    table = cluster.stores[0].table("bias", (2, 3), dtype="float64", rule=rules.Assign())
    table.push(None, numpy.arange(6.0).reshape(2, 3))
    assert table.pull().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (table.shape, table.row_shape, table.dtype) == ((2, 3), None, "float64")
    assert len(_record(cluster.stores[0], "bias")["shards"]) == 1


def test_the_same_description_is_the_same_table(make: Make) -> None:
    cluster = make("ab")
    one, two = cluster.stores
    table = one.table("t", row_shape=(4,), rule=rules.SGD(lr=0.1), initial=1)
    assert one.table("t") is table
    two.table("t", row_shape=4, rule=rules.SGD(lr=0.1), initial=1.0, dtype=numpy.float32)
    for field, change in [
        ("dtype", {"dtype": "float64"}),
        ("rule", {"rule": rules.SGD(lr=0.2)}),
        ("row_shape", {"row_shape": 5}),
        ("shape", {"row_shape": None, "shape": 4}),
        ("staleness", {"staleness": 1}),
        ("shards", {"shards": 5}),
        ("initial", {"initial": 2}),
    ]:
        arguments = {"row_shape": 4, "rule": rules.SGD(lr=0.1), "initial": 1} | change
        with pytest.raises(Mismatch, match=f"{field}="):
            two.table("t", **arguments)


def test_a_table_that_there_is_not(make: Make) -> None:
    store = make("a").stores[0]
    with pytest.raises(Gone, match=r"no table 'x': make it with shape= .* \(tables: none\)"):
        store.table("x")
    with pytest.raises(Gone, match="no table"):
        store.drop_table("x")
    with pytest.raises(InvalidArgument, match="rule without shape"):
        store.table("x", rule=rules.Assign())
    assert store.tables() == []


def test_a_dropped_table_is_gone_and_its_name_free(make: Make, fakes: FakeTables) -> None:
    cluster = make("ab")
    one, two = cluster.stores
    old = one.table("t", row_shape=1)
    other = two.table("t")
    old.push([1], numpy.ones((1, 1), "float32"))
    two.drop_table("t")
    wait_until(lambda: not any(server.shards for server in fakes.servers))
    for table in (old, other):

        def is_gone(table: Any = table) -> bool:
            try:
                table.pull([1])
            except Gone:
                return True
            return False

        wait_until(is_gone)
    new = one.table("t", row_shape=1)
    assert new is not old and new.pull([1]).tolist() == [[0]]
    with pytest.raises(Gone, match="dropped"):
        old.pull([1])


def test_arguments_that_do_not_fit(make: Make) -> None:
    store = make("a").stores[0]
    rows, tensor = store.table("rows", row_shape=2), store.table("tensor", 3)
    good = numpy.zeros((2, 2), "float32")
    for call, text in [
        (lambda: rows.push(None, good), "is sparse: pass the ids"),
        (lambda: rows.push([0.5, 1], good), "not float64, such as"),
        (lambda: rows.push(["a", "b"], good), "hash other keys to integers"),
        (lambda: rows.push([1 << 63, 1], good), "integers of 64 bits"),
        (lambda: rows.push([1 << 70, 1], good), "integers of 64 bits"),
        (lambda: rows.push([[1, 2]], good), r"ids.reshape\(-1\)"),
        (lambda: rows.push([1, 2, 3], good), "there are 3 ids and 2 rows of values"),
        (lambda: rows.push([1, 2], good[:, :1]), r"have the shape \[2, 1\].* \[2, 2\]"),
        (lambda: rows.push([1, 2], good.astype("float64")), "float32, not float64: convert"),
        (lambda: rows.push([1, 2], good, weight=0), "weight=0: it is a finite number above 0"),
        (lambda: rows.pull([1, 2], out=numpy.empty((2, 3), "float32")), "out is float32"),
        (lambda: tensor.pull([1]), "is dense: pass None as ids"),
        (lambda: tensor.push(None, good), r"have the shape \[2, 2\].* \[3\]"),
        (lambda: rows.tick(), "has no clocks: make it with staleness="),
        (lambda: rows.join(), "has no clocks"),
        (lambda: rows.set_rule(0), "is no rule: pass one of ringcoll.rules"),
        (lambda: rows.assign([1], good), "there are 1 ids and 2 rows of values"),
    ]:
        with pytest.raises(InvalidArgument, match=text):
            call()
    rows.push([], numpy.zeros((0, 2), "float32"))
    assert rows.pull([]).shape == (0, 2)


def test_values_of_torch_and_of_short_types() -> None:
    torch = pytest.importorskip("torch")
    spec = describe("t", None, 2, "bfloat16", rules.Sum(), None, None, 0.0, None, "age", 0.0)
    layout = Layout.of(spec)
    ids = layout.ids(torch.tensor([3, 4]))
    assert ids is not None and ids.tolist() == [3, 4]
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert layout.values(values.bfloat16(), ids).nbytes == 8
    assert layout.values(values, ids).nbytes == 16
    with pytest.raises(InvalidArgument, match="bfloat16 or float32, not float64"):
        layout.values(values.double(), ids)
    out, target = layout.target(torch.zeros(2, 2, dtype=torch.bfloat16), ids)
    target.data[:] = layout.values(values.bfloat16(), ids)
    target.finish()
    assert out.tolist() == values.tolist()


def test_descriptions_that_make_no_sense(make: Make) -> None:
    store = make("a").stores[0]
    for arguments, text in [
        ({"shape": 3, "row_shape": 3}, "pass one"),
        ({"shape": [2, 0]}, "integers of at least 1"),
        ({"row_shape": "x"}, "integers of at least 1"),
        ({"shape": 3, "dtype": "complex64"}, "dtype='complex64'"),
        ({"shape": 3, "dtype": "int32", "rule": rules.Adam()}, "Adam is for floating-point"),
        ({"shape": 3, "rule": "sum"}, "is no rule"),
        ({"shape": 3, "staleness": -1}, "staleness=-1"),
        ({"shape": 3, "quorum": 2}, "pass staleness="),
        ({"shape": 3, "grace_s": 2}, "pass quorum="),
        ({"shape": 3, "max_rows": 2}, "dense table has all its rows"),
        ({"row_shape": 3, "evict": "old"}, "evict='old'"),
        ({"row_shape": 3, "initial": "0x"}, "initial='0x'"),
        ({"row_shape": 3, "initial": 0.5, "dtype": "int8"}, "pass an integer"),
        ({"shape": 3, "shards": 2}, "the table has 1 rows"),
        ({"row_shape": 3, "shards": 0}, "shards=0"),
    ]:
        with pytest.raises(InvalidArgument, match=text):
            store.table("t", **arguments)
    with pytest.raises(InvalidArgument, match="name is a text"):
        store.table("", row_shape=3)
    assert store.tables() == []


def test_ranks_are_workers_and_a_guest_becomes_one(make: Make, fakes: FakeTables) -> None:
    cluster = make("aa")
    tables = cluster.all(lambda rank, store: store.table("t", row_shape=1, staleness=1))
    assert [table.clock for table in tables] == [0, 0]
    assert [tables[0].tick(), tables[0].tick(), tables[1].tick()] == [1, 2, 1]
    store = cluster.guest()
    guest = store.table("t")
    assert guest.clock is None
    with pytest.raises(InvalidArgument, match=r"call join\(\) first"):
        guest.tick()
    assert guest.join() == 1 and guest.join() == 1
    info = guest.info()
    assert sorted(info["workers"].values()) == [0, 1, 1] and info["missing"] == []
    assert [is_guest(worker) for worker in sorted(info["workers"])] == [False, False, True]
    store.close()
    wait_until(lambda: len(tables[0].info()["workers"]) == 2)


def test_a_guest_that_is_cut_off_leaves_as_a_worker(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "_SILENT_S", 0.5)
    cluster = make("a")
    table = cluster.stores[0].table("t", row_shape=1, staleness=1)
    guest = cluster.guest("g").table("t")
    guest.join()
    time.sleep(1.0)
    assert len(table.info()["workers"]) == 2, "it has its lines"
    cluster.network.cut("a", "g")
    wait_until(lambda: len(table.info()["workers"]) == 1)


def test_a_rank_that_ends_leaves_as_a_worker(make: Make) -> None:
    cluster = make("abc")
    tables = cluster.all(lambda rank, store: store.table("t", row_shape=1, staleness=1))
    wait_until(lambda: len(tables[0].info()["workers"]) == 3)
    cluster.network.kill(cluster.agent(2))
    wait_until(lambda: len(tables[0].info()["workers"]) == 2)


def test_pushes_survive_the_end_of_a_server(make: Make, fakes: FakeTables) -> None:
    cluster = make("abc")
    table = cluster.stores[1].table("t", row_shape=1, shards=6)
    ids = list(range(12))
    table.push(ids, numpy.ones((12, 1), "float32"))
    _wait_settled(cluster.stores[1], "t", wanted=2, servers=3)
    cluster.network.kill(cluster.agent(2))
    table.push(ids, numpy.ones((12, 1), "float32"))
    assert table.pull(ids).ravel().tolist() == [2.0] * 12
    _wait_settled(cluster.stores[1], "t", wanted=2, servers=2)
    cluster.network.kill(cluster.agent(0))
    assert table.pull(ids).ravel().tolist() == [2.0] * 12


def test_a_new_holder_takes_over_shards(make: Make, fakes: FakeTables) -> None:
    cluster = make("aa")
    table = cluster.stores[0].table("t", row_shape=1)
    ids = list(range(16))
    table.push(ids, numpy.ones((16, 1), "float32"))
    joined = cluster.guest("a", hold=True)
    record = _wait_settled(cluster.stores[0], "t", wanted=1, servers=3)
    assert len(record["shards"]) == 8
    table.push(ids, numpy.ones((16, 1), "float32"))
    assert joined.table("t").pull(ids).ravel().tolist() == [2.0] * 16
    server = fakes.of(cluster.agent_of(joined))
    assert 2 <= len(server.backups) <= 3


def test_the_leader_hears_how_much_shards_are_used(make: Make) -> None:
    cluster = make("a")
    store = cluster.stores[0]
    table = store.table("t", row_shape=1, shards=4)
    for _ in range(5):
        table.pull([0])
    node = store._control.node
    assert node is not None and node.directory is not None
    uses = node.directory._tables._uses
    uid = _record(store, "t")["uid"]
    wait_until(lambda: uses == {(uid, 0): 5})


def test_a_store_that_does_not_serve(make: Make, fakes: FakeTables) -> None:
    cluster = make("a")
    cluster.guest("b", hold=True, serve=False)
    table = cluster.stores[0].table("t", row_shape=1)
    table.push([1], numpy.ones((1, 1), "float32"))
    assert len(fakes.servers) == 1
    assert all(len(s["holders"]) == 1 for s in _record(cluster.stores[0], "t")["shards"])


def test_numbers_of_clients_ascend_with_the_rank() -> None:
    ranks = [client_number(f"{rank * 7919:016x}.1", rank) for rank in range(100)]
    guests = [client_number(f"{n:016x}.1", None) for n in range(100)]
    assert ranks == sorted({*ranks}) and ranks[-1] < min(guests) and max(guests) < 1 << 63
    assert len({*guests}) == 100 and not any(map(is_guest, ranks)) and all(map(is_guest, guests))
    assert all(server_number(client) < 0 for client in ranks + guests)


def test_no_holder_serves(make: Make) -> None:
    cluster = make("a", serve=False)
    with pytest.raises(InvalidArgument, match="serve=True"):
        cluster.stores[0].table("t", row_shape=1)


def test_a_server_without_memory_gets_no_shards(make: Make, fakes: FakeTables) -> None:
    cluster = make("ab")
    fakes.full.add(id(cluster.agent(1)))
    table = cluster.stores[0].table("t", row_shape=1, shards=4)
    table.push(range(8), numpy.ones((8, 1), "float32"))
    assert not fakes.of(cluster.agent(1)).shards
    assert table.pull([3]).tolist() == [[1]]


def test_the_only_holder_ends(make: Make, monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.setattr(table_leading, "_TOGETHER_S", 0.5)
    cluster = make("aa", replicas=0)
    table = cluster.stores[0].table("t", row_shape=1, shards=2)
    lost = next(
        index
        for index, shard in enumerate(_record(cluster.stores[0], "t")["shards"])
        if shard["holders"] == [cluster.stores[1]._me]
    )
    cluster.network.kill(cluster.agent(1))
    with pytest.raises(Gone):
        table.pull([lost])
    assert table.pull([1 - lost]).tolist() == [[0]]
    info = table.info()
    assert (info["shards"], info["lost"]) == (1, 1)
    wait_until(lambda: f"the shards [{lost}] of table 't' are lost" in caplog.text)


def test_nobody_is_told_of_tables_that_all_have_left(make: Make, caplog: Any) -> None:
    cluster = make("aaa", replicas=0)
    cluster.stores[0].table("t", row_shape=1, shards=6)
    for store in cluster.stores:
        store.close()
        time.sleep(0.3)  # the others notice it
    assert "lost" not in caplog.text


def test_the_only_holder_is_cut_off_and_comes_back(make: Make) -> None:
    cluster = make("aab", replicas=0)
    table = cluster.stores[0].table("t", row_shape=1, shards=3)
    ids = [0, 1, 2]
    table.push(ids, numpy.ones((3, 1), "float32"))
    cluster.network.cut("a", "b")
    wait_until(lambda: any(s["away"] for s in _record(cluster.stores[0], "t")["shards"]))
    call = table.pull_async(ids)
    with pytest.raises(Timeout, match="wait\\(\\) again"):
        call.wait(0.1)
    cluster.network.heal()
    assert call.wait().ravel().tolist() == [1.0] * 3


def test_a_primary_goes_on_without_a_backup_that_it_cannot_reach(make: Make) -> None:
    """The leader hears both, so it removes neither from the store."""
    cluster = make("abc")
    store = cluster.stores[1]
    table = store.table("t", row_shape=1, shards=6)
    ids = list(range(6))
    table.push(ids, numpy.ones((6, 1), "float32"))
    pair = {cluster.stores[1]._me, cluster.stores[2]._me}
    shards = lambda: _record(cluster.stores[0], "t")["shards"]  # noqa: E731
    both = next(i for i, s in enumerate(shards()) if s["holders"] == sorted(pair, key=_by(cluster)))
    cluster.network.cut("b", "c")
    call = table.push_async([both], numpy.zeros((1, 1), "float32"))
    wait_until(call.done)
    assert {*shards()[both]["holders"]} != pair, "answered though a backup lacked it"
    wait_until(lambda: not any(pair <= {*shard["holders"]} for shard in shards()))
    assert len(cluster.stores[0].info()["holders"]) == 3
    mine = [i for i, s in enumerate(shards()) if s["holders"][0] != cluster.stores[2]._me]
    table.push(mine, numpy.ones((len(mine), 1), "float32"))
    assert table.pull(mine).ravel().tolist() == [2.0] * len(mine)


def test_calls_go_on_when_the_leader_is_lost(make: Make) -> None:
    cluster = make("abc")
    store = cluster.stores[2]
    table = store.table("t", row_shape=1, shards=3)
    cluster.network.kill(cluster.agent(0))
    deadline = time.monotonic() + 30.0
    while time.monotonic() < deadline and store.info()["leader"] == cluster.stores[0]._me:
        pass
    table.push([0, 1, 2], numpy.ones((3, 1), "float32"))
    _wait_settled(store, "t", wanted=2, servers=2)
    assert table.pull([0, 1, 2]).ravel().tolist() == [1.0] * 3


def test_a_new_leader_learns_who_has_opened_tables(make: Make) -> None:
    """Also those of which no shard was lost with the leader: it has to tell of later changes."""
    cluster = make("aaa", replicas=0)
    for name in ("one", "two"):
        cluster.stores[2].table(name, row_shape=1, shards=1)
    (shard,) = _record(cluster.stores[2], "two")["shards"]
    assert shard["holders"] == [cluster.stores[1]._me]
    cluster.network.kill(cluster.agent(0))
    node = cluster.stores[1]._control.node
    assert node is not None
    wait_until(lambda: node.directory is not None)
    assert node.directory is not None
    uid = _record(cluster.stores[2], "two")["uid"]
    askers = node.directory._tables._askers
    wait_until(lambda: cluster.stores[2]._me in askers.get(uid, ()))


def test_calls_keep_their_order_and_flush_waits(make: Make) -> None:
    cluster = make("a")
    table = cluster.stores[0].table("t", row_shape=1, rule=rules.Assign())
    calls = [table.push_async([4], numpy.full((1, 1), n, "float32")) for n in range(20)]
    table.flush()
    assert all(call.done() for call in calls)
    assert table.pull([4]).tolist() == [[19]]


def test_other_parameters_of_the_rule(make: Make, fakes: FakeTables) -> None:
    cluster = make("a")
    table = cluster.stores[0].table("t", row_shape=1, rule=rules.SGD(lr=0.1))
    table.set_rule(rules.SGD(lr=0.01))
    assert {s.spec["rule"]["lr"] for s in fakes.servers[0].shards.values()} == {0.01}


def test_another_rule_and_values_that_are_set(make: Make, fakes: FakeTables) -> None:
    table = make("a").stores[0].table("t", row_shape=1, rule=rules.SGD(lr=0.1))
    table.set_rule(rules.Sum())
    table.assign([1, 2, 1], numpy.array([[5], [6], [7]], "float32"))
    table.push([1], numpy.ones((1, 1), "float32"))
    assert table.pull([1, 2]).tolist() == [[8], [6]]
    assert {s.spec["rule"]["rule"] for s in fakes.servers[0].shards.values()} == {"sum"}


def test_what_a_rule_of_python_gets_of_a_table() -> None:
    def spec(shape: Any, row_shape: Any, rule: rules.Rule, shards: int | None = None) -> Any:
        return describe(
            "t", shape, row_shape, "int8", rule, None, None, 0.0, None, "age", 0, shards
        )

    rule = rules.Python(abs)
    for shape, of_row in ([3, 50000], [-1, 50000]), ([9], [-1]), ([], []):
        whole = spec(shape, None, rule)
        assert rows_of(whole) == 1
        assert json.loads(whole["rule"]["data"])["shape"] == of_row
    assert json.loads(spec(None, [2, 3], rule)["rule"]["data"])["shape"] == [2, 3]
    assert rows_of(spec([3, 50000], None, rules.Sum())) == 3
    assert rows_of(spec([3, 50000], None, rules.Sum(), 1)) == 1


def test_closing_a_store_ends_its_calls(make: Make) -> None:
    cluster = make("aab", replicas=0)
    store = cluster.stores[0]
    table = store.table("t", row_shape=1, shards=3)
    table.pull([0, 1, 2])
    cluster.network.stop(cluster.agent(2))
    call = table.pull_async([0, 1, 2])
    threading.Timer(0.1, store.close).start()
    try:
        with pytest.raises(Aborted):
            while call.wait() is not None:  # a fake answers for a stopped process, too
                call = table.pull_async([0, 1, 2])
        with pytest.raises(Aborted, match="closed"):
            table.pull([0])
    finally:
        cluster.network.resume(cluster.agent(2))
