"""Stores whose holders are killed, stopped and cut off: on simulated agents."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy
import pytest
from stores import Cluster, together, wait_until

from ringcoll import _core
from ringcoll.errors import Error, Gone, PeerLost, Timeout, TransportError
from ringcoll.weights import formats
from ringcoll.weights import holder as holder_module
from ringcoll.weights import node as node_module
from ringcoll.weights.directory import GRACE_S
from ringcoll.weights.mounted import StoreSource
from ringcoll.weights.session import Session
from ringcoll.weights.store import Store

X = numpy.arange(1000, dtype="float32")
Make = Callable[..., Cluster]


def _kill(cluster: Cluster, rank: int) -> None:
    cluster.network.kill(cluster.agent(rank))


# Killed.


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_nothing_committed_is_lost_and_readers_go_on(make_hosts: Make, victim: int) -> None:
    cluster = make_hosts("abc")
    cluster.put_all({f"w{i}": X + i for i in range(6)})
    cluster.commit()
    guest = cluster.guest(address=cluster.stores[0].address)
    guest.get("w0")
    _kill(cluster, victim)
    start = time.monotonic()
    others = [store for rank, store in enumerate(cluster.stores) if rank != victim]
    for store in [guest, *others]:
        for i in range(6):
            assert (store.get(f"w{i}") == X + i).all()
    assert time.monotonic() - start < 2
    guest.put("n", X)
    assert guest.commit() == 2
    wait_until(lambda: guest.info()["replicas"] == {"wanted": 1, "had": 1})


def test_who_leaves_before_the_leader_has_heard_of_it_says_so(make_hosts: Make) -> None:
    """Otherwise it would be silent, and those that are left could not go on without the leader."""
    cluster = make_hosts("abc")
    guest = cluster.guest(address=cluster.stores[0].address)
    cluster.stores[2].close()
    _kill(cluster, 0)
    guest.put("w", X)
    assert guest.commit() == 1


def test_a_leader_that_leaves_before_members_have_heard_of_it_says_so(make_hosts: Make) -> None:
    cluster = make_hosts("ab")
    guest = cluster.guest(address=cluster.stores[0].address)
    cluster.stores[0].close()
    guest.put("w", X)
    assert guest.commit() == 1


def test_default_replicas_depend_on_hosts(make_hosts: Make) -> None:
    assert make_hosts("aa").stores[0].info()["replicas"]["wanted"] == 0
    assert make_hosts("ab").stores[0].info()["replicas"]["wanted"] == 1
    assert make_hosts("a", replicas=3).stores[0].info()["replicas"]["wanted"] == 0


def test_no_replica_lacks_where_nothing_is_stored(make_hosts: Make) -> None:
    cluster = make_hosts("ab")
    assert cluster.stores[0].info()["replicas"] == {"wanted": 1, "had": 1}
    assert cluster.commit() == 1
    assert cluster.stores[0].info()["replicas"] == {"wanted": 1, "had": 1}


def test_replicas_lie_on_other_hosts(make_hosts: Make) -> None:
    cluster = make_hosts("aabb")
    cluster.put_all({f"w{i}": X for i in range(12)})
    cluster.commit()
    catalog = cluster.stores[0]._control.node.replica.catalog
    for copies in catalog.copies.values():
        assert {catalog.members[holder]["host"] for holder in copies} == {"a", "b"}


@pytest.mark.parametrize("when", [0.0, 0.001, 0.003, 0.01])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_writer_killed_in_a_commit_makes_no_half_version(
    make_hosts: Make, victim: int, when: float
) -> None:
    cluster = make_hosts("abc")
    guest = cluster.guest()
    cluster.put_all({"w": X})
    cluster.commit()
    cluster.put_all({f"w{i}": X for i in range(40)})
    pending = [store.commit(wait=False) for store in cluster.stores]
    time.sleep(when)
    _kill(cluster, victim)
    results: list[Any] = []
    for rank, each in enumerate(pending):
        if rank != victim:
            try:
                results.append(each.wait(15))
            except PeerLost:
                results.append("lost")
    assert len(set(results)) == 1
    number = 2 if results[0] == 2 else 1
    assert guest.versions()[-1].number == number
    assert len(guest.get_state_dict()) == (41 if number == 2 else 1)
    wait_until(lambda: _leaks(cluster, victim) == [])


def _leaks(cluster: Cluster, *victims: int) -> list[str]:
    """Pieces that living ranks keep and that no version has."""
    found = []
    for rank, store in enumerate(cluster.stores):
        if rank not in victims:
            node = store._control.node
            copies = node.replica.catalog.copies
            found += [pid for pid in node.places if node.me not in copies.get(pid, {})]
            assert len(store._holder._pieces) == len(node.places) or found
    return found


def test_a_replica_killed_while_it_pulls_is_replaced(make_hosts: Make, monkeypatch: Any) -> None:
    cluster = make_hosts("abc", replicas=1)
    pulling = threading.Event()
    original = holder_module.Holder._pull

    def slow(self: Any, task: Any) -> Any:
        pulling.set()
        time.sleep(0.3)
        return original(self, task)

    monkeypatch.setattr(holder_module.Holder, "_pull", slow)
    guest = cluster.guest()
    guest.put("w", X)
    pending = guest.commit(wait=False)
    assert pulling.wait(5)

    def puller() -> int | None:
        ranks = [r for r, s in enumerate(cluster.stores) if s._holder._pulls]
        return max(ranks) or None

    victim = wait_until(puller)
    _kill(cluster, victim)
    assert pending.wait(15) == 1
    assert (guest.get("w") == X).all()
    wait_until(lambda: guest.info()["replicas"]["had"] == 1)


def test_a_new_holder_is_filled_while_all_goes_on(make_hosts: Make) -> None:
    cluster = make_hosts("ab")
    guest = cluster.guest()
    cluster.put_all({"w": X})
    cluster.commit()
    _kill(cluster, 1)
    wait_until(lambda: guest.info()["replicas"] == {"wanted": 0, "had": 0})
    joined = cluster.guest("c", hold=True)
    for i in range(10):
        guest.put("n", numpy.array(i))
        guest.commit()
    wait_until(lambda: guest.info()["replicas"] == {"wanted": 1, "had": 1})
    _kill(cluster, 0)
    assert (guest.get("w") == X).all() and guest.get("n") == 9
    assert joined.info()["leader"] == joined._me


def test_watch_and_leases_survive_a_take_over(make_hosts: Make) -> None:
    cluster = make_hosts("abc", keep=1)
    guest = cluster.guest()
    writer = cluster.guest()
    writer.put("w", X)
    writer.commit()
    watch = guest.watch(timeout=10)
    lease = guest.lease()
    _kill(cluster, 0)
    for i in range(3):
        writer.put("w", X + i)
        writer.commit()
    assert next(watch) in (2, 3, 4)
    time.sleep(2.5)  # longer than the grace
    writer.commit()
    assert (guest.get("w", 1) == X).all()
    lease.close()
    wait_until(lambda: [version.number for version in guest.versions()] == [5])


def test_a_lease_that_ends_while_a_new_leader_is_told_of_it_has_ended(
    make_hosts: Make, monkeypatch: Any
) -> None:
    cluster = make_hosts("ab", keep=1)
    cluster.put_all({"w": X})
    cluster.commit()
    guest = cluster.guest()
    lease = guest.lease()
    renew, closed = Session._renew, threading.Event()

    def renew_late(self: Session, leases: dict[str, int]) -> None:
        closed.wait(10)
        renew(self, leases)

    monkeypatch.setattr(Session, "_renew", renew_late)
    _kill(cluster, 0)
    guest.info()  # another leads
    lease.close()
    closed.set()
    guest.commit()
    wait_until(lambda: [version.number for version in guest.versions()] == [2])


def test_a_lease_that_a_leader_grants_as_it_ends_is_kept(
    make_hosts: Make, monkeypatch: Any
) -> None:
    cluster = make_hosts("ab", keep=1)
    cluster.put_all({"w": X})
    cluster.commit()
    guest, other = cluster.guest(), cluster.guest()
    add_lease = Session.add_lease

    def add_lease_late(self: Session, *arguments: Any) -> None:
        monkeypatch.undo()
        _kill(cluster, 0)
        wait_until(lambda: self._leader is None)
        add_lease(self, *arguments)

    monkeypatch.setattr(Session, "add_lease", add_lease_late)
    with guest.lease() as version:
        other.commit()
        time.sleep(GRACE_S + 0.5)
        other.commit()
        assert (guest.get("w", version) == X).all()


@pytest.mark.parametrize("how", ["killed", "left"])
def test_lost_versions_are_told_to_those_who_stay(
    make_hosts: Make, monkeypatch: Any, caplog: Any, how: str
) -> None:
    monkeypatch.setattr(node_module, "_TOGETHER_S", 60.0 if how == "killed" else 0.5)
    cluster = make_hosts("aaa", replicas=0)
    cluster.put_all({f"w{i}": X for i in range(6)})
    cluster.commit()
    if how == "killed":
        _kill(cluster, 1)
    else:
        cluster.stores[0].close()
    wait_until(lambda: "the versions [1] are lost" in caplog.text)


def test_nobody_is_told_of_versions_that_all_have_left(make_hosts: Make, caplog: Any) -> None:
    cluster = make_hosts("aaa", replicas=0)
    cluster.put_all({f"w{i}": X for i in range(6)})
    cluster.commit()
    for store in cluster.stores:
        store.close()
        time.sleep(0.3)  # the others notice it
    assert "lost" not in caplog.text


def test_the_last_copy_is_lost_with_its_holder(make_hosts: Make) -> None:
    cluster = make_hosts("aa", replicas=0)
    guest = cluster.guest()
    cluster.put_all({"a": X, "b": X})
    cluster.commit()
    _kill(cluster, 1)
    with pytest.raises(Gone):
        guest.get_state_dict(version=1)
    guest.put("c", X)
    assert guest.commit() == 2
    assert set(guest.names()) == {"c"}


def test_a_mount_reads_on_from_copies_that_were_made_since(make_hosts: Make) -> None:
    cluster = make_hosts("abcd")
    cluster.put_all({"w": X})
    cluster.commit()
    source = StoreSource(cluster.guest(), lambda: None)
    source.lease(1, 5.0)
    catalog = cluster.stores[0]._control.node.replica.catalog
    for victim in sorted(next(iter(catalog.copies.values())), reverse=True):
        _kill(cluster, [store._me for store in cluster.stores].index(victim))
        wait_until(lambda: cluster.guests[0].info()["replicas"] == {"wanted": 1, "had": 1})
        out = bytearray(X.nbytes)
        source.read(1, [formats.Piece("w", 0, memoryview(out))], 5.0)
        assert out == X.tobytes()


# Stopped.


def test_readers_go_on_when_the_leader_is_stopped(make_hosts: Make) -> None:
    cluster = make_hosts("abc", silence=1.0)
    cluster.put_all({"w": X})
    cluster.commit()
    guest = cluster.guest()
    guest.get("w")
    cluster.network.stop(cluster.agent(0))
    start = time.monotonic()
    assert (guest.get("w") == X).all()
    assert time.monotonic() - start < 2
    guest.put("n", X)
    assert guest.commit() == 2
    cluster.network.resume(cluster.agent(0))
    wait_until(lambda: len(guest.info()["holders"]) == 3)
    assert (cluster.stores[0].get("n") == X).all()
    wait_until(lambda: _leaks(cluster) == [])


def test_commits_wait_for_a_stopped_holder_and_go_on_without_it(make_hosts: Make) -> None:
    cluster = make_hosts("abc")
    guest = cluster.guest()
    cluster.network.stop(cluster.agent(2))
    guest.put("w", X)
    assert guest.commit() == 1
    assert len(guest.info()["holders"]) == 2
    cluster.network.resume(cluster.agent(2))
    wait_until(lambda: len(guest.info()["holders"]) == 3)
    assert (cluster.stores[2].get("w") == X).all()


def test_a_minority_cannot_commit_and_says_who_is_missing(make_hosts: Make) -> None:
    cluster = make_hosts("abc")
    cluster.put_all({"w": X})
    cluster.commit()
    guest = cluster.guest("a")
    for rank in (1, 2):
        cluster.network.stop(cluster.agent(rank))
    guest.put("n", X)
    with pytest.raises(Timeout) as caught:
        guest.commit(timeout=6)
    assert cluster.stores[1]._me in str(caught.value)
    assert (guest.get("w") == X).all()
    # One of them comes back, and the leader goes on. Both together might choose another one.
    cluster.network.resume(cluster.agent(1))
    wait_until(lambda: guest.versions()[-1].number == 2)  # as the error has said
    cluster.network.resume(cluster.agent(2))
    guest.put("m", X)
    assert guest.commit() == 3


def test_a_writer_that_is_stopped_fails_the_commit_of_the_others(make_hosts: Make) -> None:
    cluster = make_hosts("abc")
    cluster.put_all({"w": X})
    cluster.commit()
    cluster.put_all({"w": X})
    cluster.network.stop(cluster.agent(2))
    errors = together([lambda s=s: s.commit() for s in cluster.stores[:2]], catch=True)
    assert all(isinstance(error, (PeerLost, Timeout)) for error in errors)
    cluster.network.resume(cluster.agent(2))


# Cut off.


def test_a_cut_network_that_heals(make_hosts: Make) -> None:
    cluster = make_hosts("aab")
    cluster.put_all({"w": X})
    cluster.commit()
    guest = cluster.guest("a")
    far = cluster.guest("b")
    far.get("w")
    cluster.network.cut("a", "b")
    guest.put("n", X)
    assert guest.commit() == 2
    assert (far.get("w") == X).all()  # from its side's copy
    cluster.network.heal()
    wait_until(lambda: len(guest.info()["holders"]) == 3)
    assert (cluster.stores[2].get("n") == X).all()
    assert (far.get("n") == X).all()
    wait_until(lambda: _leaks(cluster) == [])


def test_the_side_without_the_majority_reads_on(make_hosts: Make) -> None:
    cluster = make_hosts("abb")
    cluster.put_all({"w": X})
    cluster.commit()
    near = cluster.guest("a")
    near.get("w")
    cluster.network.cut("a", "b")
    wait_until(lambda: cluster.stores[1].info()["leader"] == cluster.stores[1]._me)
    cluster.stores[1].get("w")
    assert (near.get("w") == X).all()
    near.put("n", X)
    with pytest.raises(Timeout):
        near.commit(timeout=1)
    with pytest.raises(Error):
        cluster.stores[0].lease(timeout=1).close()
        raise Timeout("it may still lease")
    cluster.network.heal()
    wait_until(lambda: len(cluster.stores[1].info()["holders"]) == 3)
    near.put("n", X)
    assert near.commit() == 2


def test_a_client_that_is_cut_off_from_the_leader_alone_reads_on(make_hosts: Make) -> None:
    cluster = make_hosts("abc")
    cluster.put_all({"w": X})
    cluster.commit()
    guest, other = cluster.guest("g"), cluster.guest("o")
    guest.get("w")
    cluster.network.cut("a", "g")
    other.put("n", X)
    assert other.commit() == 2
    assert (guest.get("w") == X).all()
    wait_until(lambda: guest.versions()[-1].number == 2)
    assert (guest.get("n") == X).all()
    guest.put("m", X)
    for call in (lambda: guest.commit(timeout=1), lambda: guest.lease(timeout=1)):
        with pytest.raises(Timeout, match="does not answer this process, and others hear it"):
            call()
    assert len(other.info()["holders"]) == 3
    cluster.network.heal()
    assert guest.commit() == 3
    with guest.lease() as version:
        assert version == 3


# Wrong bytes, and memory.


def test_wrong_bytes_of_one_holder_are_read_from_another(make_hosts: Make) -> None:
    cluster = make_hosts("ab")
    cluster.put_all({"w": X})
    cluster.commit()
    guest = cluster.guest("a")
    reader = cluster.agent_of(guest)
    reader.corrupt.add(cluster.agent(0).number)
    assert (guest.get("w") == X).all()
    reader.corrupt.add(cluster.agent(1).number)
    with pytest.raises(TransportError, match="differ from their checksum on all 2 holders"):
        guest.get("w")
    reader.corrupt.clear()
    assert (guest.get("w") == X).all()


def test_a_replica_with_wrong_bytes_is_not_counted(make_hosts: Make) -> None:
    cluster = make_hosts("ab")
    cluster.agent(1).corrupt.add(cluster.agent(0).number)
    cluster.stores[0].put("w", X)
    assert cluster.commit() == 1
    assert cluster.stores[0].info()["replicas"] == {"wanted": 1, "had": 0}
    cluster.agent(1).corrupt.clear()
    wait_until(lambda: cluster.stores[0].info()["replicas"]["had"] == 1)


def test_a_version_that_is_retired_while_it_is_read(make_hosts: Make, monkeypatch: Any) -> None:
    """A reader that lost its lease notices it, and never returns another version's bytes."""
    cluster = make_hosts("ab", keep=1)
    cluster.put_all({"w": X})
    cluster.commit()
    guest = cluster.guest()
    agent = cluster.agent_of(guest)
    original, done = agent.transfer, []

    def steal(copies: Any, timeout: Any = None) -> None:
        if not done:
            done.append(1)
            guest._leases.release(next(iter(guest._session._leases)))
            for i in range(4):
                cluster.put_all({"w": X + 10 + i})
                cluster.commit()
        original(copies, timeout)

    monkeypatch.setattr(agent, "transfer", steal)
    found = guest.get("w", offset=(10,), shape=(5,))
    assert (found == X[10:15] + 13).all()  # it was read again, as the latest
    done.clear()
    with pytest.raises(Gone):
        guest.get("w", 5, offset=(10,), shape=(5,))


def test_deltas_of_lost_holders_fall_back_to_whole_tensors(
    make_hosts: Make, monkeypatch: Any
) -> None:
    cluster = make_hosts("ab")
    big = numpy.zeros(100_000, "float32")
    cluster.put_all({"w": big})
    cluster.commit()
    guest = cluster.guest()
    out = {"w": guest.get("w")}
    cluster.put_all({"w": big + numpy.eye(1, 100_000, dtype="float32")[0]})
    cluster.commit()
    original = guest._session.ask

    def ask(holder: str, body: Any, timeout: float) -> Any:
        answer = original(holder, body, timeout)
        for rank, store in enumerate(cluster.stores):
            if store._me == holder:
                _kill(cluster, rank)
        return answer

    monkeypatch.setattr(guest._session, "ask", ask)
    with guest.prepare(since=1, out=out) as update:
        update.apply()
    assert out["w"][0] == 1 and out["w"].sum() == 1


def test_a_defect_of_a_kernel_is_told(make_hosts: Make, monkeypatch: Any) -> None:
    cluster = make_hosts("a")
    (store,) = cluster.stores
    store.put("w", X)

    def fail(out: Any, data: Any) -> int:
        raise ZeroDivisionError("defect")

    with monkeypatch.context() as patch:
        patch.setattr(_core, "copy_checksum", fail)
        with pytest.raises(Error, match="defect"):
            store.commit()
    assert store.commit() == 1


def test_a_guest_comes_back_under_another_address(make_hosts: Make) -> None:
    """The holder that a guest came to is lost before it has asked anything."""
    cluster = make_hosts("abc")
    cluster.put_all({"w": X})
    cluster.commit()
    guest = cluster.guest()
    _kill(cluster, 0)
    wait_until(lambda: cluster.stores[1].info()["leader"] == cluster.stores[1]._me)
    assert (guest.get("w") == X).all()
    with pytest.raises(Error):
        Store("weights", cluster.factory.guest(cluster.stores[0].address, "secret", "z"), timeout=2)
