"""Writing to a store, opening and closing it, on simulated and on real agents."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy
import pytest
from stores import Cluster, FakeFactory, together, wait_until

import ringcoll
from ringcoll.errors import Aborted, Gone, InvalidArgument, Mismatch, Timeout
from ringcoll.weights.session import Session
from ringcoll.weights.store import Store

Make = Callable[..., Cluster]

X = numpy.arange(24, dtype="float32").reshape(4, 6)


# Put and commit.


def test_what_was_put_is_read_by_all(make: Make) -> None:
    cluster = make(2)
    cluster.put_all({"w": X, "deep": {"b": [X[0], X[1]], "n": 3}})
    assert cluster.commit(metadata={"step": 7}) == 1
    guest = cluster.guest()
    for store in [*cluster.stores, guest]:
        found = store.get_state_dict()
        assert set(found) == {"w", "deep.b.0", "deep.b.1", "deep.n"}
        assert (found["w"] == X).all() and found["w"].dtype == X.dtype
        assert (found["deep.b.1"] == X[1]).all()
        assert found["deep.n"] == 3 and found["deep.n"].shape == ()
        (version,) = store.versions()
        assert (version.number, version.metadata, version.names) == (1, {"step": 7}, 4)
        assert version.bytes == X.nbytes + 2 * X[0].nbytes + 8
        assert abs(version.time - time.time()) < 60


def test_a_name_that_was_not_put_again_is_carried_over_without_a_copy(make: Make) -> None:
    (store,) = make(1).stores
    store.put_state_dict({"frozen": X, "moving": X})
    store.commit()
    used = store.info()["this"]["used"]
    store.put("moving", X + 1)
    assert store.commit() == 2
    assert store.info()["this"]["used"] == used + 128
    assert (store.get("frozen") == X).all()
    assert (store.get("moving") == X + 1).all()
    assert (store.get("moving", 1) == X).all()


def test_a_deleted_name_is_not_in_later_versions(make: Make) -> None:
    (store,) = make(1).stores
    store.put_state_dict({"a": X, "b": X})
    store.commit()
    store.delete("b")
    store.delete("never there")
    store.commit()
    assert set(store.names()) == {"a"}
    assert set(store.names(1)) == {"a", "b"}
    assert store.names()["a"] == ("float32", (4, 6))


def test_commits_without_anything_new_are_versions(make: Make) -> None:
    (store,) = make(1).stores
    assert store.commit() == 1
    assert store.get_state_dict() == {}
    store.put("a", X)
    assert [store.commit(), store.commit()] == [2, 3]


def test_slices_of_ranks_are_one_tensor(make: Make) -> None:
    cluster = make(2)
    cluster.all(lambda rank, s: s.put("w", X[:, 3 * rank : 3 * rank + 3], X.shape, (0, 3 * rank)))
    cluster.commit()
    for store in cluster.stores:
        assert (store.get("w") == X).all()
        assert (store.get("w", offset=(1, 2), shape=(2, 3)) == X[1:3, 2:5]).all()
        assert (store.get("w", offset=(3, 0)) == X[3:]).all()


def test_bytes_that_all_ranks_have_are_shared_out(make: Make) -> None:
    cluster = make(2, replicas=0)
    cluster.put_all({f"w{i}": X for i in range(8)})
    cluster.commit()
    held = [each["bytes"] for each in cluster.stores[0].info()["holders"].values()]
    assert held == [4 * X.nbytes, 4 * X.nbytes]


def test_ranks_that_differ_are_told_on_all(make: Make) -> None:
    cluster = make(2)
    cluster.put_all({"ok": X})
    cluster.commit()
    cluster.all(lambda rank, store: store.put("w", X.astype(["float32", "float64"][rank])))
    for error in cluster.all(lambda rank, store: store.commit(), catch=True):
        assert isinstance(error, Mismatch)
        assert "float32 [4, 6] on rank 0, and float64 [4, 6] on rank 1" in str(error)
    cluster.put_all({"w": X})  # what was put stays put, but for what is put anew
    assert cluster.commit() == 2
    assert (cluster.stores[1].get("w") == X).all()


def test_gaps_and_overlaps_are_told_on_all(make: Make) -> None:
    cluster = make(2)
    cluster.all(lambda rank, store: store.put("w", X[:1], X.shape, (rank, 0)))
    for error in cluster.all(lambda rank, store: store.commit(), catch=True):
        assert isinstance(error, InvalidArgument) and "in no slice" in str(error)
    cluster.all(lambda rank, store: store.put("w", X[:3], X.shape, (rank, 0)))
    for error in cluster.all(lambda rank, store: store.commit(), catch=True):
        assert isinstance(error, InvalidArgument) and "overlap" in str(error)


def test_a_rank_that_does_not_commit_is_named(make: Make) -> None:
    cluster = make(2)
    cluster.put_all({"w": X})
    with pytest.raises(Timeout, match="rank 1 of the writers has not called commit") as caught:
        cluster.stores[0].commit(timeout=0.5)
    assert caught.value.rank == 1
    with pytest.raises(Timeout):
        cluster.stores[1].commit(timeout=5)  # it comes too late, and learns the same
    assert cluster.commit() == 1


def test_commit_without_waiting(make: Make) -> None:
    cluster = make(2)
    mine = [X.copy() for _ in cluster.stores]
    cluster.all(lambda rank, store: store.put("w", mine[rank]))
    pending = cluster.all(lambda rank, store: store.commit(wait=False))
    for each in pending:
        each.copied(10)
    for each in mine:
        each[...] = -1
    assert [each.wait(10) for each in pending] == [1, 1]
    assert all(each.done() for each in pending)
    assert (cluster.stores[0].get("w") == X).all()


def test_errors_reach_the_waiting_call(make: Make) -> None:
    cluster = make(2)
    cluster.all(lambda rank, store: store.put("w", X[rank:]))
    for pending in cluster.all(lambda rank, store: store.commit(wait=False)):
        with pytest.raises(Mismatch):
            pending.wait(10)
        with pytest.raises(Mismatch):
            pending.copied(10)


def test_commit_returns_soon_for_many_tensors(make: Make) -> None:
    (store,) = make(1).stores
    tensors = {f"layer.{i}": numpy.zeros(1000, "float32") for i in range(400)}
    best = 1.0
    for _ in range(5):
        store.put_state_dict(tensors)
        start = time.perf_counter()
        pending = store.commit(wait=False)
        best = min(best, time.perf_counter() - start)
        pending.wait(10)
    assert best < 2e-3


def test_commits_in_a_row_are_in_order(make: Make) -> None:
    (store,) = make(1, keep=20).stores
    pending = []
    for i in range(10):
        store.put("n", numpy.array(i))
        pending.append(store.commit(wait=False))
    assert [each.wait(10) for each in pending] == list(range(1, 11))
    assert [int(store.get("n", i + 1)) for i in range(10)] == list(range(10))


def test_what_is_put_is_described_to_the_leader_once(make: Make, monkeypatch: Any) -> None:
    request = Session.request
    described: list[bool] = []

    def note(self: Session, body: dict[str, Any], *rest: Any) -> dict[str, Any]:
        if body["q"] == "stage":
            described.append(body["entries"] is not None)
        return request(self, body, *rest)

    monkeypatch.setattr(Session, "request", note)
    store = make(1).stores[0]
    for name in ("a", "b", "b"):
        store.put(name, numpy.ones(3))
        store.commit()
    assert described == [True, True, False]


def test_metadata_are_what_they_were_in_the_call(make: Make) -> None:
    (store,) = make(1).stores
    metadata = {"step": 1}
    store.commit(metadata)
    metadata["step"] = 2
    store.commit(metadata)
    store.versions()[0].metadata["step"] = 3
    with store.prepare(1, out={}) as update:
        update.metadata["step"] = 3
    assert [version.metadata for version in store.versions()] == [{"step": 1}, {"step": 2}]


def test_guests_write_too(make: Make) -> None:
    cluster = make(1)
    cluster.put_all({"a": X})
    cluster.commit()
    guest = cluster.guest()
    guest.put("b", X + 1)
    assert guest.commit({"by": "guest"}) == 2
    guest.close()
    found = cluster.stores[0].get_state_dict()
    assert (found["a"] == X).all() and (found["b"] == X + 1).all()


def test_two_writers_do_not_lose_one_anothers_names(make: Make) -> None:
    cluster = make(1, keep=50)
    guests = [cluster.guest() for _ in range(3)]

    def write(index: int) -> None:
        for i in range(5):
            guests[index].put(f"g{index}.{i}", numpy.array([index, i]))
            guests[index].commit()

    together([lambda i=i: write(i) for i in range(3)])
    found = cluster.stores[0].get_state_dict()
    assert len(found) == 15
    assert [version.number for version in guests[0].versions()] == list(range(1, 16))


@pytest.mark.parametrize(
    ("name", "tensor", "text"),
    [
        ("", X, "empty"),
        ("../x", X, r"\.\."),
        ("w", "text", "no tensor"),
        ("w", None, "no tensor"),
        ("w", numpy.array(["a", object()]), "objects"),
    ],
)
def test_put_refuses(name: str, tensor: Any, text: str) -> None:
    cluster = Cluster(FakeFactory(), ["a"])
    try:
        with pytest.raises(InvalidArgument, match=text):
            cluster.stores[0].put(name, tensor)
    finally:
        cluster.close()


def test_put_refuses_slices_that_do_not_fit(make: Make) -> None:
    (store,) = make(1).stores
    with pytest.raises(InvalidArgument, match="not within"):
        store.put("w", X, (4, 6), (1, 0))
    with pytest.raises(InvalidArgument, match="or neither"):
        store.put("w", X, (4, 6))
    with pytest.raises(InvalidArgument, match="two tensors"):
        store.put_state_dict({"a.b": X, "a": {"b": X}})


# Opening and closing.


def test_a_holder_that_joins_takes_part(make: Make) -> None:
    cluster = make(1, replicas=1)
    cluster.put_all({"w": X})
    cluster.commit()
    (store,) = cluster.stores
    assert store.info()["replicas"] == {"wanted": 0, "had": 0}
    guest = cluster.guest(hold=True)
    wait_until(lambda: store.info()["replicas"] == {"wanted": 1, "had": 1})
    assert len(guest.versions()[0].holders) == 2
    store.close()
    assert (guest.get("w") == X).all()
    guest.put("w", X + 1)
    assert guest.commit() == 2


def test_wrong_arguments_of_puts_and_commits(make: Make) -> None:
    (store,) = make(1).stores
    with pytest.raises(InvalidArgument, match="no dictionary"):
        store.commit(5)
    with pytest.raises(InvalidArgument, match="JSON"):
        store.commit({"x": X})
    with pytest.raises(InvalidArgument, match="is a text"):
        store.put(5, X)
    assert store.commit({"x": [1, None]}) == 1


def test_wrong_arguments_of_a_store(make: Make) -> None:
    cluster = make(1)
    (comm,) = cluster.comms
    for settings, text in [
        ({"keep": 0}, "keep=0"),
        ({"replicas": -1}, "replicas=-1"),
    ]:
        with pytest.raises(InvalidArgument, match=text):
            Store("other", comm, **settings)
    with pytest.raises(InvalidArgument, match="name"):
        Store("a b", comm)
    with pytest.raises(InvalidArgument, match="already"):
        Store("weights", comm)
    with pytest.raises(InvalidArgument, match="neither a communicator"):
        Store("other", 5)


def test_ranks_that_open_different_stores_are_told(make: Make) -> None:
    cluster = make(2)
    errors = together(
        [lambda c=c, k=k: Store("s", c, keep=k) for k, c in enumerate(cluster.comms, 1)],
        catch=True,
    )
    assert all(isinstance(error, Mismatch) for error in errors)
    stores = together([lambda c=c: Store("s", c) for c in cluster.comms])
    for store in stores:
        store.close()


def test_several_stores_of_one_process(make: Make) -> None:
    cluster = make(2)
    others = together([lambda c=c: Store("ema", c) for c in cluster.comms])
    cluster.put_all({"w": X})
    for store in others:
        store.put("w", X + 1)
    together([lambda s=s: s.commit() for s in others])
    cluster.commit()
    assert (cluster.stores[0].get("w") == X).all()
    assert (others[1].get("w") == X + 1).all()
    for store in others:
        store.close()
    assert (cluster.stores[1].get("w") == X).all()


def test_a_guest_of_a_store_that_is_not_there(make: Make) -> None:
    cluster = make(1)
    agent = cluster.factory.guest(cluster.stores[0].address, "secret", "g")
    with pytest.raises(Gone, match="no store of this name"):
        Store("weighs", agent, timeout=5)
    Store("weights", agent, timeout=5).close()


def test_a_closed_store(make: Make) -> None:
    cluster = make(1)
    (store,) = cluster.stores
    store.put("w", X)
    store.commit()
    guest = cluster.guest()
    assert "weights" in repr(store) and not store.closed
    guest.close()
    guest.close()
    assert guest.closed
    for call in (guest.versions, guest.commit, lambda: guest.get("w"), guest.watch):
        with pytest.raises(Aborted):
            call()
    with store:
        pass
    assert store.closed


def test_closing_ends_calls_in_flight(make: Make) -> None:
    cluster = make(2)
    cluster.put_all({"w": X})
    pending = cluster.stores[0].commit(wait=False)
    time.sleep(0.1)
    cluster.stores[0].close()
    with pytest.raises(Aborted):
        pending.wait(10)


def test_a_child_process_cannot_use_the_store(make: Make) -> None:
    cluster = make(1)
    (store,) = cluster.stores
    child = os.fork()
    if child == 0:
        status = 1
        try:
            store.versions()
        except InvalidArgument:
            store.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    store.put("w", X)
    assert store.commit() == 1


def test_the_store_is_there_as_ringcoll_store() -> None:
    assert ringcoll.Store is Store
