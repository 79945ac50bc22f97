"""What a rank keeps of communicators that have ended: nothing that grows."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

# Some bytes of each of the last 4,096 groups are kept (base/recent.h). Then nothing is added.
FILLING, ROUNDS = 4_200, 600
# Of anonymous memory, in the rounds that add least: a heap does not always find its gaps. 128 bytes
# of each round would be seen.
MOST_KIB = ROUNDS * 128 // 1024


def anonymous_kib():
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1])
    raise AssertionError("the kernel does not tell")


def split_and_send(world):
    part = world.split(ranks=[0, 1])
    peer = 1 - part.rank
    received = np.empty(4, "u1")
    pending = part.irecv(received, peer)
    part.send(np.ones(4, "u1"), peer)
    pending.wait()
    return part


def shrink(world):
    return world.shrink()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("make", [split_and_send, shrink])
def test_communicators_that_have_ended_leave_nothing(run_ranks, make, transport):
    def body(world):
        def end(rounds):
            for _ in range(rounds):
                with make(world) as part:
                    part.allreduce(np.ones(10, "f4"))
            world.barrier()
            return anonymous_kib(), len(list(Path("/proc/self/fd").iterdir()))

        end(FILLING)
        marks = [end(ROUNDS) for _ in range(4)]
        kib, descriptors = zip(*marks, strict=True)
        grown = min(after - before for before, after in itertools.pairwise(kib))
        return grown, descriptors[-1] - descriptors[0]

    env = {"RINGCOLL_TRANSPORT": transport, "RINGCOLL_LOG": "error"}
    for grown_kib, descriptors in run_ranks(2, body, limit=300, env=env):
        assert grown_kib < MOST_KIB
        assert descriptors <= 0
