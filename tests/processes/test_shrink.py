"""Ranks that are killed, and others that go on without them."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import numpy as np
import pytest

import ringcoll

TRANSPORTS = ["shm", "tcp"]


def goes_on(world):
    """Steps of training whose communicator is replaced by the rest of it when ranks are lost; at
    the end the size and the sum of each of them."""
    x = np.ones(1 << 18, "f4")
    now, seen = world, []
    while not Path("mark.over").exists():
        try:
            total = now.allreduce(x)
            if not seen or seen[-1] != (now.size, total[0]):
                seen.append((now.size, float(total[0])))
            Path(f"mark.at{now.size}").touch()
        except ringcoll.PeerLost:
            now = now.shrink()
            continue
        over = np.array([Path("mark.over").exists()], "u1")
        try:
            if now.allreduce(over, "max")[0]:
                break
        except ringcoll.PeerLost:
            now = now.shrink()
    return seen


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_ranks_that_are_killed_are_done_without(start_ranks, transport):
    """One, and then two at once that are not side by side, and rank 0 among them."""
    job = start_ranks(6, goes_on, env={"RINGCOLL_TRANSPORT": transport})
    job.wait_for("at6")
    job.kill(3)
    job.wait_for("at5")
    time.sleep(0.1)
    job.kill(0)
    job.kill(4)
    job.wait_for("at3")
    (job.folder / "mark.over").touch()
    outcomes = job.join(30)
    for rank in (0, 3, 4):
        assert outcomes[rank].exit_code == -signal.SIGKILL
    for rank in (1, 2, 5):
        seen = outcomes[rank].value
        assert seen is not None, outcomes[rank].output
        assert seen[-1] == (3, 3.0), seen
        assert all(size == total for size, total in seen), seen
    # Whoever was last in the first step may have heard of the loss in it.
    assert any((6, 6.0) in outcomes[rank].value for rank in (1, 2, 5))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_rank_that_is_killed_while_others_shrink(start_ranks, transport):
    """Whoever ends while the others agree is left out, or lost to the first call."""

    def body(world):
        world.allreduce(np.ones(4))
        Path("mark.running").touch()
        now = world
        while now.size > 2:
            try:
                now.allreduce(np.ones(4))
            except ringcoll.PeerLost:
                Path("mark.lost").touch()
                now = now.shrink()
        return [float(now.allreduce(np.ones(1))[0]) for _ in range(3)]

    job = start_ranks(4, body, env={"RINGCOLL_TRANSPORT": transport})
    job.wait_for("running")
    job.kill(1)
    job.wait_for("lost")
    job.kill(2)
    outcomes = job.join(30)
    for rank in (0, 3):
        assert outcomes[rank].value == [2.0] * 3, outcomes[rank].output


def test_a_stopped_rank_is_named(start_ranks):
    """It is not lost, and does not come: whoever shrinks says so at the deadline."""

    def body(world):
        world.allreduce(np.ones(4))
        Path("mark.running").touch()
        while not Path("mark.stopped").exists():
            time.sleep(0.01)
        with pytest.raises(ringcoll.Timeout, match="rank 1") as caught:
            world.shrink()
        Path(f"mark.timeout{world.rank}").touch()
        return caught.value.rank

    job = start_ranks(3, body, env={"RINGCOLL_TIMEOUT_S": "2"})
    job.wait_for("running")
    job.kill(1, signal.SIGSTOP)
    (job.folder / "mark.stopped").touch()
    job.wait_for("timeout0")
    job.wait_for("timeout2")
    job.kill(1)
    outcomes = job.join(20)
    assert [outcomes[rank].value for rank in (0, 2)] == [1, 1], outcomes[0].output
