"""Writers' groups that change: a rank is lost, another process joins."""

from __future__ import annotations

from collections.abc import Iterator

import numpy
import pytest
from fake_agent import FakeWorld
from stores import Cluster, FakeFactory, together

import ringcoll
from ringcoll.weights import Store


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Three ranks, one on each host, of which all hold version 1."""
    cluster = Cluster(FakeFactory(), ["a", "b", "c"], replicas=2)
    cluster.put_all({"w": numpy.zeros(6), "kept": numpy.ones(3)})
    assert cluster.commit() == 1
    yield cluster
    cluster.close()


def regroup(cluster: Cluster, stores: list[Store]) -> None:
    """A communicator of these stores' processes is made, and they commit together from then on."""
    world = FakeWorld([cluster.agent_of(store) for store in stores])
    together([lambda r=r, s=s: s.regroup(world.rank_of(r)) for r, s in enumerate(stores)])


def commit(stores: list[Store]) -> int:
    (version,) = set(together([lambda s=s: s.commit(timeout=20.0) for s in stores]))
    return int(version)


def test_those_left_of_a_group_commit_again(cluster: Cluster) -> None:
    left = cluster.stores[:2]
    cluster.factory.kill(cluster.agent(2))
    for store in left:
        store.put("w", numpy.full(6, 2.0))
    with pytest.raises(ringcoll.PeerLost):
        commit(left)
    regroup(cluster, left)
    assert commit(left) == 2
    for store in left:
        assert (store.get("w", 2) == 2.0).all()
        assert (store.get("kept", 2) == 1.0).all()


def test_a_process_that_has_joined_puts_its_slice(cluster: Cluster) -> None:
    stores = [*cluster.stores, cluster.guest("d", hold=True)]
    regroup(cluster, stores)
    for rank, store in enumerate(stores):
        store.put("shared", numpy.full(2, float(rank)), [8], [2 * rank])
    assert commit(stores) == 2
    assert stores[0].get("shared").tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_not_while_a_commit_is_under_way(cluster: Cluster) -> None:
    store = cluster.stores[0]
    pending = store.commit(wait=False)  # the other ranks do not commit yet
    with pytest.raises(ringcoll.InvalidArgument, match="a commit is under way"):
        store.regroup(cluster.comms[0])
    together([lambda s=s: s.commit() for s in cluster.stores[1:]])
    assert pending.wait(20) == 2


def test_ranks_with_different_stores_are_refused(cluster: Cluster) -> None:
    other = Cluster(FakeFactory(), ["a"])
    try:
        world = FakeWorld([cluster.agent(0), other.agent(0)])
        stores = [cluster.stores[0], other.stores[0]]
        calls = [lambda r=r, s=s: s.regroup(world.rank_of(r)) for r, s in enumerate(stores)]
        errors = together(calls, catch=True)
        assert [type(error) for error in errors] == [ringcoll.Mismatch] * 2
    finally:
        other.close()


def test_an_agent_is_no_group(cluster: Cluster) -> None:
    with pytest.raises(ringcoll.InvalidArgument, match="pass a communicator"):
        cluster.stores[0].regroup(cluster.agent(0))
