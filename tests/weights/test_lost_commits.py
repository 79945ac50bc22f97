"""Commits whose pieces are lost before others have them: they change nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
from stores import Cluster, FakeFactory, wait_until

from ringcoll.weights.commits import Commits

X = numpy.arange(1000, dtype="float32")


@pytest.fixture
def make() -> Iterator[Callable[..., Cluster]]:
    """``make(replicas=1)``: a store of two ranks that keeps one version, with the version 1."""
    made: list[Cluster] = []

    def cluster(**settings: Any) -> Cluster:
        made.append(Cluster(FakeFactory(silence=0.3), ["a", "b"], keep=1, **settings))
        made[-1].put_all({"w": X})
        made[-1].commit()
        return made[-1]

    yield cluster
    for each in made:
        each.close()


def test_a_version_that_is_lost_at_once_does_not_take_the_place_of_another(
    make: Callable[..., Cluster], monkeypatch: Any
) -> None:
    """Without replicas a writer may end when its version is in the log and not yet committed."""
    cluster = make(replicas=0)
    writer, other = cluster.guest(hold=True), cluster.guest()
    propose = Commits._propose

    def propose_and_kill(self: Commits, stage: Any) -> Any:
        cluster.network.kill(cluster.agent_of(writer))
        return propose(self, stage)

    monkeypatch.setattr(Commits, "_propose", propose_and_kill)
    writer.put("n", X)
    writer.commit(wait=False)
    wait_until(lambda: len(other.info()["holders"]) == 2)
    monkeypatch.undo()
    assert [version.number for version in other.versions()] == [1]
    assert (other.get("w") == X).all()


def test_a_version_of_a_holder_that_has_ended_is_not_made(
    make: Callable[..., Cluster], monkeypatch: Any
) -> None:
    """Others cannot copy its pieces, and notice its end before the leader does."""
    cluster = make(replicas=1)
    writer, other = cluster.guest(hold=True), cluster.guest()
    staged, find_silence = Commits.staged, cluster.network._find_silence

    def staged_by_the_dead(self: Commits, *arguments: Any) -> None:
        cluster.agent_of(writer).alive = False
        staged(self, *arguments)

    monkeypatch.setattr(cluster.network, "_find_silence", lambda: None)
    monkeypatch.setattr(Commits, "staged", staged_by_the_dead)
    writer.put("n", X)
    writer.commit(wait=False)
    wait_until(lambda: not cluster.agent_of(writer).alive)
    time.sleep(0.3)
    assert [version.number for version in other.versions()] == [1]
    monkeypatch.setattr(cluster.network, "_find_silence", find_silence)
    wait_until(lambda: len(other.info()["holders"]) == 2)
    assert (other.get("w") == X).all()
    other.put("w", X + 1)
    assert other.commit() == 2
