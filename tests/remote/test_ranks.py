"""Regions of ranks: of one host, of others, and for guests beside the ranks."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import ringcoll


@pytest.mark.parametrize("same_host", [True, False])
def test_ranks_read_and_write_one_another(run_ranks, same_host):
    def body(rank, size, store):
        if not same_host:
            os.environ["RINGCOLL_HOSTID"] = f"h{rank}"
        world = ringcoll.init(rank, size, store)
        mine = ringcoll.empty(1000) if world.rank == 0 else np.empty(1000, "float32")
        mine[:] = world.rank
        region = world.register(mine, writable=True)
        handles = [np.zeros(1024, "uint8") for _ in range(world.size)]
        handle = region.handle()
        handles[world.rank][: len(handle)] = np.frombuffer(handle, "uint8")
        length = np.array([len(handle)])
        lengths = world.allgather(length)
        for root in range(world.size):
            world.broadcast(handles[root], root=root, out=handles[root])
        other = (world.rank + 1) % world.size
        theirs = handles[other][: lengths[other]].tobytes()
        got = np.empty(1000, "float32")
        world.agent.read(theirs, got)
        assert (got == other).all()
        world.barrier()
        world.agent.write(theirs, np.full(1000, 10 + world.rank, "float32"), notice=world.rank)
        assert region.wait_notice(timeout=20) == (world.rank - 1) % world.size
        assert (mine == 10 + (world.rank - 1) % world.size).all()
        world.barrier()
        region.close()
        return True

    assert run_ranks(3, body, connect=False) == [True] * 3


def test_a_guest_comes_to_a_rank_and_goes(run_ranks):
    def body(world):
        numbers = np.arange(1000.0)
        region = world.register(numbers, writable=True)
        url = world.agent.admit("numbers", key="a key")
        world.barrier()
        if world.rank == 0:
            with ringcoll.connect(url, key="a key") as guest:
                got = np.empty(1000)
                guest.read(region.handle(), got)
                guest.write(region.handle(), got + 1)
        world.barrier()
        total = world.allreduce(np.array([numbers.sum()]))
        return float(total[0])

    assert run_ranks(2, body) == [2 * 499500.0 + 1000] * 2


def test_ctrl_c_ends_what_waits(run_ranks):
    def body(world):
        # Where the tests run in the background, SIGINT is ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        region = world.register(np.zeros(10), writable=True)
        for wait in (region.wait_notice, world.agent.receive):
            threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt):
                wait()
        return True

    assert run_ranks(1, body) == [True]


def test_ranks_with_a_store_go_on_when_one_is_killed(start_ranks):
    def body(world):
        store = ringcoll.Store("w", world, key="key", replicas=1)
        store.put("w", np.full(1000, 1.0))
        assert store.commit() == 1
        Path(f"mark.{world.rank}").touch()
        while not Path("mark.dead").exists():
            time.sleep(0.005)
        left = world.shrink()
        store.regroup(left)
        store.put("w", store.get("w") + 1.0)
        version = store.commit()
        total = float(store.get("w", version).sum())
        left.barrier()
        store.close()
        return version, total

    job = start_ranks(3, body)
    for rank in range(3):
        job.wait_for(str(rank))
    job.kill(0)  # the leader
    (job.folder / "mark.dead").touch()
    outcomes = job.join(60)
    for rank in (1, 2):
        assert outcomes[rank].value == (2, 2000.0), outcomes[rank].output
