"""Processes that keep the files of one store in one directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
from stores import Cluster, FakeFactory, wait_until

import ringcoll
from ringcoll.weights import Store


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Two ranks of a host, which open the store with the same path."""
    cluster = Cluster(FakeFactory(), ["a", "a"], replicas=1, path=tmp_path / "files")
    yield cluster
    cluster.close()


def publish(store: Store, value: float) -> int:
    store.put("w", numpy.full(4, value))
    return store.commit()


def await_file(folder: Path, version: int, value: float) -> None:
    """Waits until ``latest`` is this version, with this value."""
    latest = folder / "latest"
    wait_until(lambda: latest.is_symlink() and latest.readlink().name == str(version))
    assert numpy.load(latest / "w.npy").tolist() == [value] * 4


def test_one_of_the_ranks_of_a_host_writes_the_files(cluster: Cluster, tmp_path: Path) -> None:
    cluster.put_all({"w": numpy.full(4, 3.0)})
    await_file(tmp_path / "files", cluster.commit(), 3.0)


def test_another_rank_goes_on_when_the_one_that_wrote_has_left(
    cluster: Cluster, tmp_path: Path
) -> None:
    guest = cluster.guest()
    await_file(tmp_path / "files", publish(guest, 1.0), 1.0)
    first = (tmp_path / "files" / "1").stat().st_ino
    cluster.stores[0].close()
    await_file(tmp_path / "files", publish(guest, 2.0), 2.0)
    assert (tmp_path / "files" / "1").stat().st_ino == first  # it is not written again


def test_the_directory_of_another_store_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    other = Cluster(FakeFactory(), ["a"])
    try:
        with pytest.raises(ringcoll.InvalidArgument, match="another process exports to it"):
            other.guest(path=tmp_path / "files")
    finally:
        other.close()
