"""What the log says of a wait that lasts, long before its deadline."""

from __future__ import annotations

import re
import time

import numpy as np
import pytest

import ringcoll

LATE_S = 33  # longer than the first line takes to come, and not as long as the second


def slow_in_calls(world):
    """Rank 1 is late for a call, one that was started, a message and a shrink, one after another
    in jobs of their own."""
    world.barrier()
    if world.rank == 1:
        time.sleep(LATE_S)
        world.send(np.ones(3), 0, 9)
    received = world.irecv(np.zeros(3), 1, 9) if world.rank == 0 else None
    pending = world.isend(np.ones(1 << 20), 1, 8) if world.rank == 0 else None
    world.allreduce(np.ones(5, "f4"))
    if world.rank == 0:
        received.wait()
    else:
        world.recv(np.zeros(1 << 20), 0, 8)
    if pending:
        pending.wait()


def slow_in_started_calls(world):
    world.barrier()
    if world.rank == 1:
        time.sleep(LATE_S)
    world.allgather_async(np.ones(7)).wait()


def slow_in_shrink(world):
    world.barrier()
    if world.rank == 1:
        time.sleep(LATE_S)
    world.shrink().close()


def slow_to_start(rank, size, store):
    if rank == 1:
        time.sleep(LATE_S)
    ringcoll.init(rank, size, store).close()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_the_log_names_the_call_its_age_and_who_is_waited_for(start_ranks, transport):
    bodies = {
        slow_in_calls: [
            "allreduce #2 of 5 float32, sum has waited 30 s for rank 1 (",
            "receive of at most 24 bytes from rank 1, tag 9 has waited 30 s for rank 1 (",
            "send of 8388608 bytes to rank 1, tag 8 has waited 30 s for rank 1 (",
        ],
        slow_in_started_calls: ["allgather #2 of 14 float64 has waited 30 s for rank 1 ("],
        slow_in_shrink: ["shrink has waited 30 s for rank 1 ("],
        slow_to_start: ["has waited 30 s for rank 1\n"],
    }
    env = {"RINGCOLL_TRANSPORT": transport, "RINGCOLL_TIMEOUT_S": "300"}
    jobs = {
        body: start_ranks(2, body, env=env, connect=body is not slow_to_start) for body in bodies
    }
    for body, lines in bodies.items():
        for outcome in jobs[body].join(LATE_S + 60):
            assert outcome.error is None, outcome.error
        log = jobs[body].output(0)
        for line in lines:  # a busy machine may be a second late
            found = re.findall(re.escape(line).replace("30", "3[0-2]"), log)
            assert len(found) == 1, f"{line!r} in {log}"
        assert log.count(" has waited ") == len(lines), log
        assert " has waited " not in jobs[body].output(1)
