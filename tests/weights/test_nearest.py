"""Readers take bytes from the nearest holders: of the host, then of the leaf, then others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy
import pytest
from stores import Cluster, FakeFactory

from ringcoll.weights import Store

WEIGHTS = numpy.arange(5000.0)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Three holders on hosts a, b, c, each of which has all of version 1. Nobody knows the leaf of
    host a."""
    cluster = Cluster(FakeFactory(1), ["a"], replicas=2)
    try:
        join(cluster, "b", "spine.1", hold=True)
        join(cluster, "c", "spine.2", hold=True)
        cluster.put_all({"w": WEIGHTS})
        assert cluster.commit() == 1
        yield cluster
    finally:
        cluster.close()


def join(cluster: Cluster, host: str, leaf: str, **settings: Any) -> Store:
    """A new guest on a host below a leaf."""
    agent = cluster.factory.guest(cluster.stores[0].address, "secret", host)
    agent.leaf = leaf
    store = Store("weights", agent, timeout=30.0, **settings)
    cluster.guests.append(store)
    cluster.guest_agents[id(store)] = agent
    return store


@pytest.mark.parametrize(
    ("host", "leaf", "nearest"),
    [("c", "spine.2", "host"), ("d", "spine.2", "leaf"), ("d", "spine.3", "far"), ("d", "", "far")],
)
def test_the_nearest_holder_serves(cluster: Cluster, host: str, leaf: str, nearest: str) -> None:
    reader = join(cluster, host, leaf)
    assert (reader.get("w") == WEIGHTS).all()
    read = reader.info()["this"]["read"]
    assert {kind for kind, size in read.items() if size} == {nearest}
