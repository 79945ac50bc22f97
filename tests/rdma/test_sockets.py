"""Ranks that are bound to the sockets of an emulated machine: a level below that of hosts."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import ringcoll

pytestmark = pytest.mark.guest(cpus=4, sockets=2, timeout=150)

RANKS = 4
CPU_OF = (0, 2, 1, 3)  # dealt out to the sockets in turn; the first has CPUs 0 and 1
OVER_SOCKETS = (
    "allreduce=direct/ring,reduce_scatter=direct/ring,allgather=direct/ring,"
    "broadcast=direct/chain,reduce=direct/chain,alltoall=direct/direct,"
    "barrier=binomial/dissemination"
)


def started(rank: int, size: int, store: str) -> ringcoll.Communicator:
    os.sched_setaffinity(0, {CPU_OF[rank]})
    return ringcoll.init(rank=rank, size=size, store=store)


def test_sockets_are_a_level_and_the_ring_follows_them(run_ranks):
    def body(rank: int, size: int, store: str) -> dict[str, Any]:
        with started(rank, size, store) as world:
            part = world.split(color=0 if rank < 3 else None)
            return world.stats() | {"of_part": part.stats() if part else None}

    for stats in run_ranks(RANKS, body, limit=120, connect=False):
        assert stats["levels"] == list(stats["costs"]["levels"]) == ["socket", "host"]
        # Rates are where streams of 0.4 ms find the emulated processors at work.
        assert stats["costs"]["source"].startswith("measured")
        assert stats["ring_order"] == [0, 2, 1, 3]
        groups = [peer["groups"] for peer in stats["peers"]]
        assert groups == [[0, 0], [1, 0], [0, 0], [1, 0]]
        if part := stats["of_part"]:
            assert part["costs"]["levels"] == stats["costs"]["levels"]
            assert part["ring_order"] == [0, 2, 1]


def test_schedules_over_sockets(run_ranks):
    """Their results are right, and they are taken: four messages an allreduce instead of six."""

    def body(rank: int, size: int, store: str) -> int:
        with started(rank, size, store) as world:
            for count in (1, 1000, 400_003):
                mine = (np.arange(count) * (rank + 1) % 100).astype("f4")
                all_of_them = [(np.arange(count) * (r + 1) % 100).astype("f4") for r in range(size)]
                total = sum(all_of_them)
                assert (world.allreduce(mine) == total).all()
                assert (world.allgather(mine).reshape(size, -1) == all_of_them).all()
                assert (world.broadcast(mine.copy(), root=3) == all_of_them[3]).all()
                blocks = np.concatenate([mine] * size)
                assert (world.reduce_scatter(blocks).reshape(-1) == total).all()
                sent = np.concatenate([mine + peer for peer in range(size)])
                wanted = np.concatenate([theirs + rank for theirs in all_of_them])
                assert (world.alltoall(sent).reshape(-1) == wanted).all()
                world.barrier()
            before = world.stats()["messages_sent"]
            world.allreduce(np.ones(1000, "f4"))
            return world.stats()["messages_sent"] - before

    env = {"RINGCOLL_ALGORITHM": OVER_SOCKETS}
    assert run_ranks(RANKS, body, limit=120, connect=False, env=env) == [4] * RANKS
