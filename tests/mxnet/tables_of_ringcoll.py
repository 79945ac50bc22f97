"""The jobs of :mod:`tables_in_memory`, over stores of ringcoll: each thread is a rank."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import ringcoll
from ringcoll import _core
from ringcoll.mxnet import launch

_names = itertools.count()


def jobs(size: int) -> list[launch.Job]:
    """The jobs of so many workers, which serve the tables themselves."""
    place = f"local://mxnet{next(_names)}"

    def job(rank: int) -> launch.Job:
        world = ringcoll.Communicator(_core.Comm(rank, size, place, "world"), "world")
        store = ringcoll.Store(launch.NAME, world)
        return launch.Job(rank, size, store, world.barrier)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(job, range(size)))
