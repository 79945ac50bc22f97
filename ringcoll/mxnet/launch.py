"""The job of a worker: its rank, the others, and the store of tables."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

import ringcoll
from ringcoll.errors import Error, InvalidArgument, PeerLost
from ringcoll.mxnet import scheduler
from ringcoll.mxnet.scheduler import Lines, Plan

NAME = "mxnet"  # of the store of tables
_REPLICAS = "RINGCOLL_MXNET_REPLICAS"


class Job:
    """What the stores of a worker share."""

    def __init__(self, rank: int, size: int, store: Any, barrier: Callable[[], None]) -> None:
        self.rank, self.size, self.store, self.barrier = rank, size, store, barrier
        self._stores = 0

    def next_prefix(self) -> str:
        """Of the names of the tables of one store. Workers make the same stores in one order."""
        self._stores += 1
        return f"{NAME}-{self._stores}"


@functools.cache
def job() -> Job:
    """The job of this process, which it joins when it makes its first store. Collective."""
    replicas = _replicas()  # before anybody is waited for
    if "DMLC_PS_ROOT_URI" in os.environ:
        return _of_mxnet(replicas)
    return _of_ringcoll(replicas)


def _of_ringcoll(replicas: int | None) -> Job:
    """Ranks of a launcher that :func:`ringcoll.init` knows are workers and servers both."""
    try:
        world = ringcoll.world()
    except ringcoll.InvalidArgument:
        world = ringcoll.init()
    store = ringcoll.Store(NAME, world, replicas=replicas)
    _at_exit(store, world.barrier)
    return Job(world.rank, world.size, store, world.barrier)


def _of_mxnet(replicas: int | None) -> Job:
    """A worker of MXNet's launchers. It serves no tables unless there are no servers."""
    plan = Plan.of()
    lines = scheduler.connect(plan)
    lines.send({"role": "worker", "store": _free_store(lines.own_host)})
    told = _next(lines, plan)
    world = ringcoll.init(told["rank"], plan.workers, told["store"])
    store = ringcoll.Store(
        NAME,
        world,
        replicas=replicas,
        key=told["key"],
        serve=plan.servers == 0,
    )
    if world.rank == 0:
        lines.send({"address": store.address})
    _next(lines, plan)
    # The connection closes with this process, however it ends.
    _at_exit(store, world.barrier, lines)
    return Job(world.rank, world.size, store, world.barrier)


def _replicas() -> int | None:
    """How many backups shards have. Servers of MXNet have none."""
    text = os.environ.get(_REPLICAS, "")
    if text and not text.isdecimal():
        raise InvalidArgument(f"{_REPLICAS}={text!r}: it is a number of backups, such as 0 or 1")
    return int(text) if text else None


def serve(plan: Plan) -> None:
    """The process of the role "server". Returns when the scheduler has ended."""
    lines = scheduler.connect(plan)
    lines.send({"role": "server"})
    told = _next(lines, plan)
    with (
        ringcoll.connect(told["address"], key=told["key"]) as guest,
        ringcoll.Store(NAME, guest, hold=True),
    ):
        lines.send({"serving": True})
        lines.receive(None)


def _next(lines: Lines, plan: Plan) -> scheduler.Line:
    line = lines.receive(plan.limit_s)
    if line is None:
        raise PeerLost("the scheduler has ended: its own output says why")
    return line


def _free_store(host: str) -> str:
    """Where worker 0 can have the store in which the workers meet."""
    host = os.environ.get("DMLC_NODE_HOST", host)
    with socket.create_server(("", 0)) as found:
        return f"tcp://{host}:{found.getsockname()[1]}"


def _at_exit(store: Any, barrier: Callable[[], None], lines: Lines | None = None) -> None:
    """Has the processes end together, as MXNet's do, so that tables are served until all workers
    have finished. One that ends with an exception does not wait for those that wait for it."""

    def end() -> None:
        with contextlib.suppress(Error):
            if not hasattr(sys, "last_value"):
                barrier()
        store.close()
        if lines is not None:
            lines.close()

    atexit.register(end)
