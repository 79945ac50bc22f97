"""Ranks with workers of a data loader, as a job of training has them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

import ringcoll

data = pytest.importorskip("torch.utils.data")
pytestmark = pytest.mark.forks


class Slow(data.Dataset):
    """Its workers are always in the middle of an item."""

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        time.sleep(0.01)
        return np.full(1000, index)


def train(world):
    """Steps, each with an item, until an error; whom it blames, and when it came."""
    x = np.ones(1 << 20, "f4")
    items = iter(data.DataLoader(Slow(), num_workers=2, multiprocessing_context="fork"))
    next(items)
    Path(f"workers.{world.rank}").write_text(" ".join(str(one.pid) for one in items._workers))
    world.barrier()
    Path("mark.running").touch()
    try:
        for _ in items:
            world.allreduce(x, "max", out=x)
    except ringcoll.PeerLost as error:
        told = time.monotonic()
        Path(f"mark.told{world.rank}").touch()
        return error.rank, told


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_rank_that_is_killed_is_lost_though_its_workers_live(start_ranks, transport):
    """They were forked from a rank at work, have what it had open, and outlive it by 5 s."""
    job = start_ranks(4, train, env={"RINGCOLL_TRANSPORT": transport})
    job.wait_for("running", 60)
    time.sleep(0.5)
    workers = [int(pid) for pid in (job.folder / "workers.2").read_text().split()]
    killed = time.monotonic()
    job.kill(2)
    try:
        for rank in (0, 1, 3):
            job.wait_for(f"told{rank}", 10)
    finally:
        for worker in workers:  # they would end by themselves, 5 s after their parent
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
    outcomes = job.join(30)
    for rank in (0, 1, 3):
        assert outcomes[rank].value is not None, outcomes[rank].output
        lost, told = outcomes[rank].value
        assert lost == 2
        assert told - killed < 3.0, "while the workers lived"
