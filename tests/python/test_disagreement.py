"""Ranks that disagree about a call: all raise `Mismatch` soon, whatever its size, and nobody gets a
tensor that holds results of both. (All pairs of calls: csrc/coll/disagreement_test.cc.)"""

from __future__ import annotations

import time

import numpy as np
import pytest

import ringcoll

# Far above what it takes, also on a busy machine, and far below the deadline.
SOON_S = 5
DEADLINE = {"RINGCOLL_TIMEOUT_S": "30"}


def _raises(world, call, *texts):
    """Makes the call, and then barriers, as a program that goes on would; returns what it got."""
    begun = time.monotonic()
    with pytest.raises(ringcoll.Mismatch) as caught:
        call()
        while time.monotonic() < begun + SOON_S:
            world.barrier()
    assert time.monotonic() < begun + SOON_S
    for text in ("rank 1 runs", *texts):
        assert text in str(caught.value)


@pytest.mark.parametrize("count", [1, 100, 300_000])
@pytest.mark.parametrize("size", [2, 3])
def test_factors(run_ranks, size, count):
    def body(world):
        factor = 2.0 if world.rank == 1 else 1.0
        _raises(
            world,
            lambda: world.allreduce(np.ones(count), postscale=factor),
            "about the postscale",
            "postscale 1",
            "postscale 2",
        )

    run_ranks(size, body, env=DEADLINE)


@pytest.mark.parametrize("count", [1, 100, 20_000, 300_000])
@pytest.mark.parametrize("size", [2, 3])
def test_roots(run_ranks, size, count):
    def body(world):
        root = 1 if world.rank == 1 else 0
        _raises(
            world,
            lambda: world.broadcast(np.ones(count), root),
            "about the root",
            "root 0",
            "root 1",
        )

    run_ranks(size, body, env=DEADLINE)


@pytest.mark.parametrize("count", [1, 100, 300_000])
@pytest.mark.parametrize("size", [2, 3])
def test_collectives(run_ranks, size, count):
    def body(world):
        ones = np.ones(count)
        _raises(
            world,
            lambda: world.allreduce(ones) if world.rank == 1 else world.reduce(ones),
            "about the collective",
            "allreduce #1",
            "reduce #1",
        )

    run_ranks(size, body, env=DEADLINE)


def test_of_ranks_that_stop(run_ranks):
    """Both only send, and make no other call: they learn of it all the same."""

    def body(world):
        world.broadcast(np.ones(10), root=world.rank)
        time.sleep(1)
        with pytest.raises(ringcoll.Mismatch, match="about the root"):
            world.barrier()

    run_ranks(2, body, env=DEADLINE)


def test_groups(run_ranks):
    def body(world):
        with pytest.raises(ringcoll.Mismatch, match=r"names 0, 1, 2.*names 2, 1, 0"):
            world.split([0, 1, 2] if world.rank != 2 else [2, 1, 0])

    run_ranks(3, body, env=DEADLINE)
