"""``timeout=`` of a call."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

import ringcoll


@pytest.mark.parametrize("way", ["blocking", "async"])
def test_a_call_ends_at_its_own_deadline(run_ranks, way):
    def body(world):
        world.barrier()
        if world.rank == 1:
            time.sleep(2)
            with pytest.raises(ringcoll.Timeout):
                world.barrier()
            return
        begin = time.monotonic()
        with pytest.raises(ringcoll.Timeout, match="timeout of the call") as caught:
            if way == "blocking":
                world.allreduce(np.ones(3), timeout=0.2)
            else:
                world.allreduce_async(np.ones(3), timeout=0.2).wait()
        assert 0.19 < time.monotonic() - begin < 1.9
        assert caught.value.rank == 1

    run_ranks(2, body)


@pytest.mark.parametrize("timeout", [20, math.inf])
def test_a_deadline_may_be_later_than_that_of_init(run_ranks, timeout):
    def body(world):
        world.barrier()
        if world.rank == 1:
            time.sleep(1.5)
        return float(world.allreduce(np.ones(3), timeout=timeout)[0])

    assert run_ranks(2, body, env={"RINGCOLL_TIMEOUT_S": "1"}) == [2, 2]


def test_every_collective_takes_one(run_ranks):
    def body(world):
        x = np.ones(4)
        for name, more in {
            "allreduce": {},
            "reduce": {},
            "broadcast": {},
            "allgather": {},
            "gather": {},
            "scatter": {"out": np.ones(2)},
            "reduce_scatter": {},
            "alltoall": {},
            "scan": {},
            "exscan": {},
        }.items():
            getattr(world, name)(x, timeout=10, **more)
            getattr(world, f"{name}_async")(x, timeout=10, **more).wait()
        counts = [1, 3] if world.rank == 0 else [2, 2]
        world.alltoall(x, send_counts=counts, timeout=10)
        world.barrier(timeout=10)
        world.barrier_async(timeout=10).wait()

    run_ranks(2, body)


@pytest.mark.parametrize("timeout", [0, -1, math.nan])
def test_what_is_no_deadline_is_refused(run_ranks, timeout):
    def body(world):
        for call in (world.barrier, world.barrier_async):
            with pytest.raises(ringcoll.InvalidArgument, match="positive number of seconds"):
                call(timeout=timeout)
        world.barrier()

    run_ranks(1, body)
