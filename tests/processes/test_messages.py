"""Messages with tags between processes that die, stop or leave: a clear error that names them, and
memory that is the caller's again."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

import ringcoll
from ringcoll import ANY_SOURCE

TRANSPORTS = ["shm", "tcp"]
LARGE = 16 << 20


def outcome_of(handle):
    try:
        handle.wait()
    except ringcoll.Error as error:
        return type(error).__name__, error.rank
    return None


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_sigkill_ends_all_that_is_pending(start_ranks, transport):
    """Sends that nobody asked for, receives that nobody sent to, of any rank, and of one that
    lives."""

    def body(world):
        world.barrier()
        if world.rank == 2:
            Path("mark.running").touch()
            time.sleep(60)
        large, room = np.ones(LARGE, "u1"), np.zeros(10)
        handles = [
            world.isend(large, 2, 1),
            world.irecv(room, 2, 2),
            world.irecv(room, ANY_SOURCE, 3),
            world.irecv(room, 1 - world.rank, 4),
        ]
        found = [outcome_of(handle) for handle in handles]
        ended = time.monotonic()
        large[:] = 0
        with pytest.raises(ringcoll.PeerLost, match="rank 2"):
            world.recv(room, 1 - world.rank)
        return found, ended

    job = start_ranks(3, body, env={"RINGCOLL_TRANSPORT": transport})
    job.wait_for("running")
    time.sleep(0.3)
    killed = time.monotonic()
    job.kill(2)
    outcomes = job.join(20)
    for rank in (0, 1):
        found, ended = outcomes[rank].value
        assert found == [("PeerLost", 2)] * 4, outcomes[rank].output
        assert ended - killed < 5


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("victim", [0, 1])
def test_sigkill_in_the_middle_of_a_message(start_ranks, transport, victim):
    def body(world):
        x = np.ones(LARGE, "u1")
        world.barrier()
        Path("mark.running").touch()
        try:
            while True:
                if world.rank == 0:
                    world.send(x, 1)
                else:
                    world.recv(x, 0)
        except ringcoll.Error as error:
            return type(error).__name__, error.rank

    job = start_ranks(2, body, env={"RINGCOLL_TRANSPORT": transport})
    job.wait_for("running")
    time.sleep(0.3)
    job.kill(victim)
    outcomes = job.join(20)
    assert outcomes[1 - victim].value == ("PeerLost", victim), outcomes[1 - victim].output


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_stopped_receiver_is_a_timeout_that_names_it(start_ranks, transport):
    def body(world):
        world.barrier()
        if world.rank == 1:
            Path("mark.running").touch()
            time.sleep(60)
        while not Path("mark.stopped").exists():
            time.sleep(0.01)
        with pytest.raises(ringcoll.Timeout) as caught:
            world.send(np.ones(LARGE, "u1"), 1, timeout=1.0)
        Path("mark.raised").touch()
        return caught.value.rank

    job = start_ranks(2, body, env={"RINGCOLL_TRANSPORT": transport})
    job.wait_for("running")
    job.kill(1, signal.SIGSTOP)
    (job.folder / "mark.stopped").touch()
    try:
        job.wait_for("raised", 20)
    finally:
        job.kill(1, signal.SIGKILL)
    assert job.join(20)[0].value == 1


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_what_a_rank_sent_before_it_left_arrives(run_ranks, transport):
    def body(world):
        if world.rank == 1:
            world.send(np.arange(1000.0), 0, 1)
            return
        x = np.zeros(1000)
        time.sleep(0.3)  # it has left by then, or not: both have to do
        world.recv(x, 1, 1)
        assert (x == np.arange(1000.0)).all()
        with pytest.raises(ringcoll.PeerLost) as caught:
            world.recv(x, 1, 2)
        assert caught.value.rank == 1

    run_ranks(2, body, env={"RINGCOLL_TRANSPORT": transport})


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_group_without_the_lost_rank_goes_on(start_ranks, transport):
    def body(world):
        rest = world.split([0, 1] if world.rank < 2 else [])
        world.barrier()
        if world.rank == 2:
            Path("mark.running").touch()
            time.sleep(60)
        with pytest.raises(ringcoll.PeerLost):
            world.recv(np.zeros(1), 2)
        x = np.zeros(100_000)
        if world.rank == 0:
            rest.send(np.ones(100_000), 1)
        else:
            rest.recv(x, 0)
            assert x.sum() == 100_000
        after = world.shrink()
        if world.rank == 1:
            after.send(np.ones(100_000), 0)
        else:
            after.recv(x, 1)
        return float(x.sum())

    job = start_ranks(3, body, env={"RINGCOLL_TRANSPORT": transport})
    job.wait_for("running")
    job.kill(2)
    outcomes = job.join(30)
    for rank in (0, 1):
        assert outcomes[rank].value == 100_000, outcomes[rank].output


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_children_that_are_forked_in_the_middle(run_ranks, transport):
    """As a data loader does, while messages are under way: what they inherit harms nobody."""

    def body(world):
        peer = 1 - world.rank
        children = []
        for number in range(20):
            x, y = np.full(200_000, number), np.zeros(200_000, "i8")
            handles = [world.irecv(y, peer), world.isend(x, peer)]
            child = os.fork()
            if child == 0:
                os._exit(0)
            children.append(child)
            for handle in handles:
                handle.wait()
            assert (y == number).all()
        for child in children:
            assert os.waitpid(child, 0)[1] == 0

    run_ranks(2, body, env={"RINGCOLL_TRANSPORT": transport})
