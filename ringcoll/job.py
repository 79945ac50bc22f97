"""The communicator of a whole job: :func:`init` makes it, :func:`world` returns it,
:func:`shutdown` closes it."""

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
    """Connects this process with the other ranks of its job, and returns the communicator of all of
    them.

    Without arguments, rank, size and store come from the launcher (:mod:`ringcoll.environment`) and
    ``RINGCOLL_STORE``. Without a launcher, a process is rank 0 of 1. ``store`` is
    ``tcp://HOST:PORT`` (rank 0 serves it), ``file:///DIRECTORY`` (all ranks must see it),
    ``horovod://HOST:PORT/SCOPE`` or ``local://NAME`` (threads of one process). ``name``
    distinguishes communicators in one store. ``timeout`` is the deadline of every wait for a peer,
    in seconds; the default is the knob ``RINGCOLL_TIMEOUT_S``.

    Blocks until all ranks are there; Ctrl-C interrupts it. :func:`shutdown` runs at exit. Raises
    :class:`ringcoll.InvalidArgument` if arguments, a variable or a knob make no sense, or if init
    was called before without a shutdown. Raises :class:`ringcoll.Timeout` or
    :class:`ringcoll.TransportError` if the store or ranks are missing.

    A process may fork at any time. The child cannot use its parent's communicators
    (:class:`ringcoll.InvalidArgument`), but may call init itself.
    """
    global _world
    if _world is not None and not _world.closed:
        raise InvalidArgument("init was called already: use world(), or call shutdown() first")
    deadline = seconds_of(timeout)
    job = find_job(rank, size, store)
    try:
        core = _core.Comm(job.rank, job.size, job.store, _fresh_name(job.store, name), deadline)
    except BaseException:
        atexit.register(job.tidy)  # not now: other ranks may still look for this one there
        raise
    if job.derived:
        core.run("barrier", (), ())  # after it no rank looks at the store any more
        job.tidy()
    _world = Communicator(core, name)
    return _world


def world() -> Communicator:
    """The communicator that :func:`init` has made. Raises :class:`ringcoll.InvalidArgument` if
    there is none."""
    if _world is None:
        raise InvalidArgument("there is no communicator yet: call ringcoll.init()")
    return _world


def shutdown() -> None:
    """Closes the communicator of :func:`init`, which may then be called again. Does nothing if
    there is none."""
    global _world
    if _world is not None:
        _world.close()
    _world = None


def _fresh_name(store: str, name: str) -> str:
    """A name that this process has not yet used in this store, since stores keep the keys of
    earlier communicators."""
    _attempts[store, name] += 1
    number = _attempts[store, name]
    return name if number == 1 else f"{name}.{number}"


@atexit.register
def _say_goodbye(owner: int = os.getpid()) -> None:
    # Peers then see this rank leave, not die. A forked child inherits this hook without the
    # library's threads, so it does nothing.
    if os.getpid() == owner:
        with contextlib.suppress(InvalidArgument):
            shutdown()
