"""Stores whose holders have no memory left, or no threads: on simulated agents."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy
import pytest
from stores import Cluster, wait_until

from ringcoll.weights import directory as directory_module

X = numpy.arange(1000, dtype="float32")
Make = Callable[..., Cluster]


def test_no_memory_for_a_commit(make_hosts: Make, monkeypatch: Any) -> None:
    cluster = make_hosts("a")
    (store,) = cluster.stores
    store.put("w", X)
    store.commit()

    with monkeypatch.context() as patch:
        patch.setattr(cluster.agent(0), "empty", _no_memory)
        with pytest.raises(MemoryError):
            store.put("big", numpy.zeros(10**6))
            store.commit()
    assert store.commit() == 2
    assert store.names()["big"][1] == (10**6,)


def _no_memory(shape: Any, dtype: Any) -> Any:
    raise MemoryError("none left")


def test_copies_go_to_a_holder_that_has_memory(make_hosts: Make, monkeypatch: Any) -> None:
    cluster = make_hosts("abc")
    cluster.put_all({f"w{i}": X for i in range(6)})
    cluster.commit()
    joined = cluster.guest("d", hold=True)  # it has the fewest bytes, so it is asked first
    monkeypatch.setattr(cluster.agent_of(joined), "empty", _no_memory)
    cluster.network.kill(cluster.agent(2))
    wait_until(lambda: len(joined.info()["holders"]) == 3)
    wait_until(lambda: joined.info()["replicas"] == {"wanted": 1, "had": 1})


def _start_no_pull(thread: threading.Thread) -> None:
    if thread.name == "ringcoll-store-pull":
        raise RuntimeError("it has no memory left for a new thread")
    _start(thread)


_start = threading.Thread.start


@pytest.mark.parametrize("lack", ["memory", "threads"])
def test_a_commit_without_its_replica_says_so(
    make_hosts: Make, monkeypatch: Any, caplog: Any, lack: str
) -> None:
    monkeypatch.setattr(directory_module, "_REFUSED_S", 0.1)
    cluster = make_hosts("ab")
    guest = cluster.guest()
    with monkeypatch.context() as patch:
        if lack == "memory":
            patch.setattr(cluster.agent(1), "empty", _no_memory)
        else:
            patch.setattr(threading.Thread, "start", _start_no_pull)
        cluster.stores[0].put("w", X)
        assert cluster.commit() == 1
        assert cluster.stores[1]._me in caplog.text
        assert "has no memory left" in caplog.text
        assert "version 1 has fewer copies than wanted" in caplog.text
        index = guest.info()["index"]
        time.sleep(1.2)  # in which attempts fail, which are neither logged again nor updates
        assert caplog.text.count("pieces could not be pulled") <= 1
        assert guest.info()["index"] == index
    wait_until(lambda: guest.info()["replicas"] == {"wanted": 1, "had": 1})
    cluster.network.kill(cluster.agent(0))
    assert (guest.get("w") == X).all()


def test_a_holder_without_memory_makes_no_deltas(make_hosts: Make, monkeypatch: Any) -> None:
    cluster = make_hosts("a")
    (store,) = cluster.stores
    big = numpy.zeros(100_000, "float32")
    store.put("w", big)
    store.commit()
    guest = cluster.guest()
    out = {"w": guest.get("w")}
    big[0] = 1
    store.put("w", big)
    store.commit()
    monkeypatch.setattr(cluster.agent(0), "empty", _no_memory)
    begin = time.monotonic()
    guest.get_state_dict(out=out, since=1)
    assert time.monotonic() - begin < 10
    assert out["w"][0] == 1
