"""Regions of ranks: of one host, of others, and for guests beside the ranks."""

from __future__ import annotations

import os
import signal
import threading

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
        region = world.register(np.zeros(10), writable=True)
        for wait in (region.wait_notice, world.agent.receive):
            threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt):
                wait()
        return True

    assert run_ranks(1, body) == [True]
