"""The communicator of a whole job: made by :func:`init`, found by :func:`world`, ended by
:func:`shutdown`."""

from __future__ import annotations

import atexit
import contextlib
import os
from collections import Counter

from ringcoll import _core
from ringcoll.communicator import Communicator, seconds_of
from ringcoll.environment import find_job
from ringcoll.errors import InvalidArgument

_world: Communicator | None = None
_attempts: Counter[tuple[str, str]] = Counter()


def init(
    rank: int | None = None,
    size: int | None = None,
    store: str | None = None,
    name: str = "world",
    timeout: float | None = None,
) -> Communicator:
    """Connects this process with the others of its job, and returns the communicator of all of
    them.

    Without arguments, rank, size and store come from the launcher (:mod:`ringcoll.environment`) and
    ``RINGCOLL_STORE``; started alone, a process is rank 0 of 1. ``store`` is ``tcp://HOST:PORT``
    (rank 0 serves it), ``file:///DIRECTORY`` (one that all ranks see),
    ``horovod://HOST:PORT/SCOPE`` or ``local://NAME`` (threads of one process). ``name`` tells
    communicators in one store apart. ``timeout`` is the deadline of every wait for a peer, in
    seconds; by default the knob ``RINGCOLL_TIMEOUT_S``.

    Blocks until all ranks are there. Raises :class:`ringcoll.InvalidArgument` if the arguments, a
    variable or a knob make no sense or init was called already, :class:`ringcoll.Timeout` or
    :class:`ringcoll.TransportError` if the store or ranks are missing. Ctrl-C works.
    :func:`shutdown` is called at exit. A process may fork at any time; the child cannot use what
    its parent has made (:class:`ringcoll.InvalidArgument`), but may call init itself.
    """
    global _world
    if _world is not None and not _world.closed:
        raise InvalidArgument("init was called already: use world(), or call shutdown() first")
    deadline = seconds_of(timeout)
    job = find_job(rank, size, store)
    try:
        core = _core.Comm(job.rank, job.size, job.store, _fresh_name(job.store, name), deadline)
    except BaseException:
        atexit.register(job.tidy)  # not now: others may still look for this rank there
        raise
    if job.derived:
        core.run("barrier", (), ())  # so that no rank still looks at the store
        job.tidy()
    _world = Communicator(core, name)
    return _world


def world() -> Communicator:
    """The communicator that :func:`init` made. Raises :class:`ringcoll.InvalidArgument` before."""
    if _world is None:
        raise InvalidArgument("there is no communicator yet: call ringcoll.init()")
    return _world


def shutdown() -> None:
    """Closes what :func:`init` made, so that it can be called again. Before it, does nothing."""
    global _world
    if _world is not None:
        _world.close()
    _world = None


def _fresh_name(store: str, name: str) -> str:
    """A name that this process has not used in this store: stores keep the keys of earlier
    communicators."""
    _attempts[store, name] += 1
    number = _attempts[store, name]
    return name if number == 1 else f"{name}.{number}"


@atexit.register
def _say_goodbye(owner: int = os.getpid()) -> None:
    # Peers see a rank leave rather than die. A forked child has inherited this hook, not the
    # threads.
    if os.getpid() == owner:
        with contextlib.suppress(InvalidArgument):
            shutdown()
