"""A mount from begin to end, in the process of its server."""

from __future__ import annotations

import logging
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ringcoll.weights.fuse import mounting
from ringcoll.weights.fuse.connection import Server
from ringcoll.weights.fuse.filesystem import FileSystem
from ringcoll.weights.fuse.spool import Spool, default_parent
from ringcoll.weights.source import Source

log = logging.getLogger("ringcoll.mount")

# 8 requests of the most that one reads. So the source has several transfers under way when a
# program reads a large file from its begin to its end.
_READAHEAD_BYTES = 8 << 20
_START_S = 10.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True)
class Options:
    """``allow_other``: other users may read. ``staging``: an existing directory in which the files
    of /staging lie; by default in memory. ``timeout_s``, ``commit_timeout_s``: after that, what the
    store does not answer is an error. ``linger_s``: how long files that are open are served after a
    signal has ended the mount."""

    allow_other: bool = False
    staging: Path | None = None
    timeout_s: float = 5.0
    commit_timeout_s: float = 600.0
    threads: int = 8
    linger_s: float = 5.0


def serve(
    source: Source, point: Path, options: Options, ready: Callable[[Path], object] = print
) -> None:
    """Mounts, calls ``ready``, and serves until the directory is unmounted or a signal comes.

    To be called by the main thread of a process of its own: a process that maps a file which its
    own interpreter serves waits for ever. Raises InvalidArgument and Error if it cannot mount.
    """
    mounting.check()
    _allow_many_files()
    point = mounting.prepare(point)
    spool = Spool(options.staging or default_parent())
    try:
        with _signals() as signalled:
            system = FileSystem(source, spool, options.timeout_s, options.commit_timeout_s)
            server = Server(point, system, allow_other=options.allow_other, threads=options.threads)
            try:
                server.start(_START_S)
                mounting.set_readahead(point, _READAHEAD_BYTES)
                ready(point)
                _wait(server, signalled)
            finally:
                _end(server, point, signalled, options.linger_s)
    finally:
        spool.close()


def _wait(server: Server, signalled: threading.Event) -> None:
    while not server.wait(0.1) and not signalled.is_set():
        pass


def _end(server: Server, point: Path, signalled: threading.Event, linger_s: float) -> None:
    """Unmounts, if nobody has yet. Open files are served a while; a second signal ends that."""
    if server.wait(0):
        return
    signalled.clear()
    if not mounting.unmount(point, lazy=False) and not mounting.unmount(point, lazy=True):
        log.error("%s: cannot be unmounted", point)
    steps = max(1, int(linger_s / 0.1))
    for _ in range(steps):
        if server.wait(0.1) or signalled.is_set():
            return
    log.warning("%s: files are still open, and can no longer be read", point)


@contextmanager
def _signals() -> Iterator[threading.Event]:
    """An event that is set when a signal asks this process to end."""
    event = threading.Event()
    before = {number: signal.signal(number, lambda *_: event.set()) for number in _SIGNALS}
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _allow_many_files() -> None:
    """Each open file of the staging area takes a descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
