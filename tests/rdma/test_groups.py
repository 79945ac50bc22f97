"""Groups that are split off a job, and what is left of one, over a real kernel RDMA device."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

import ringcoll

pytestmark = pytest.mark.guest(cpus=2, timeout=250)

VERBS = {"RINGCOLL_TRANSPORT": "verbs"}
# Of a group with calls: its completion channel (docs/rdma.md, "How it works").
MOST_DESCRIPTORS = 1
# The ends of two. A process keeps a pipe for each thread that slept while others did.
PIPES = 4


def test_groups_work_beside_one_another_and_leave_nothing(start_ranks, device):
    def body(world):
        def call(group, ranks):
            x = np.full(100_000, world.rank + 1.0, "f4")
            for _ in range(3):  # which registers it
                assert (group.allreduce(x) == sum(rank + 1 for rank in ranks)).all()

        def talk(group, ranks):
            y, before, behind = np.zeros(50_000, "i4"), group.rank - 1, group.rank + 1
            receive = group.irecv(y, before % group.size, 1)
            group.send(np.full(50_000, world.rank, "i4"), behind % group.size, 1)
            receive.wait()
            assert (y == ranks[before % group.size]).all()

        def count(what):
            return sum(1 for _ in Path(f"/proc/self/{what}").iterdir())

        halves = [world.rank % 2, world.rank % 2 + 2]
        pairs = [0, 3] if world.rank in (0, 3) else [1, 2]
        call(world, range(4))
        talk(world, range(4))
        descriptors, threads = count("fd"), count("task")
        for turn in range(5):
            half, pair = world.split(color=world.rank % 2), world.split(pairs)
            call(half, halves)
            call(pair, pairs)
            assert count("task") == threads
            # And a lifeline: one of the halves' pairs has none from the ring.
            assert count("fd") <= descriptors + 2 * MOST_DESCRIPTORS + 1 + PIPES
            started = [half.allreduce_async(np.ones(100_000, "f4")) for _ in range(3)]
            call(pair, pairs)
            talk(pair, pairs)
            talk(half, halves)
            for each in started:
                assert (each.wait() == 2).all()
            half.close()
            pair.close()
            call(world, range(4))
            talk(world, range(4))
            if turn == 0:  # lifelines stay
                settled = count("fd")
        # Of a group nothing is left.
        assert count("fd") <= settled + PIPES
        assert settled <= descriptors + 1 + PIPES

    with device.counting() as moved:
        outcomes = start_ranks(4, body, env=VERBS).join(200)
    for outcome in outcomes:
        assert outcome.error is None, outcome.output
    assert device.packets_sent(moved) > 0


def test_what_is_left_goes_on(start_ranks):
    def body(world):
        half = world.split([0, 1] if world.rank < 2 else [2, 3])
        x = np.ones(200_000, "f4")
        half.allreduce(x)
        world.barrier()
        Path("mark.running").touch()
        with pytest.raises(ringcoll.PeerLost) as caught:
            while True:
                world.allreduce(x)
        left = world.shrink()
        assert (left.size, left.rank) == (3, world.rank - (world.rank == 3))
        for _ in range(3):
            assert (left.allreduce(x) == 3).all()
        y = np.zeros(100_000, "i4")
        if left.rank == 0:
            left.send(np.full(100_000, 5, "i4"), 2, 7)
        elif left.rank == 2:
            left.recv(y, 0, 7)
            assert (y == 5).all()
        # Whose ranks all live goes on as well; the other half has lost one.
        if world.rank < 2:
            assert (half.allreduce(x) == 2).all()
        else:
            with pytest.raises(ringcoll.PeerLost):
                half.allreduce(x)
        left.barrier()
        return caught.value.rank

    job = start_ranks(4, body, env=VERBS)
    job.wait_for("running", 120)
    time.sleep(0.5)
    job.kill(2)
    outcomes = job.join(150)
    for rank in (0, 1, 3):
        assert outcomes[rank].error is None, outcomes[rank].output
        assert outcomes[rank].value == 2
