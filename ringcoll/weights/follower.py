"""Keeps the versions of a store as files in a directory of this host, while the store is open.

Of the processes that keep the same directory, the one that has its lock writes. When that process
has ended, the kernel gives the lock to another one.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy

from ringcoll.errors import Error, Gone
from ringcoll.log import log
from ringcoll.weights import archive
from ringcoll.weights.export import Exporter, Occupied

if TYPE_CHECKING:
    from ringcoll.weights.store import Store

_LAST_S = 5.0  # for the last export, when the store is closed
_NAMELESS_S = 0.5  # who has got the lock says its name within this time
_LOOK_S = 1.0  # versions that were retired are removed, and the lock is tried, at least so often


class Follower:
    """The thread that exports versions. One that cannot be exported is logged, and tried again, for
    the disk may be full. Raises what Exporter raises, but for a directory to which another process
    exports the store of this ``identity``: then it waits until that process has ended."""

    def __init__(self, store: Store, path: Path, identity: str) -> None:
        self._store = store
        self._path, self._identity = path, identity
        self._exported: set[int] = set()
        self._exporter = self._try_export()
        self._failed: set[int] = set()
        self._newest = 0  # of the versions that were looked at
        self._closing = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="ringcoll-store-files", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread, after it has exported what was committed so far, unless that takes too
        long. The files stay."""
        self._closing.set()
        self._thread.join(timeout=_LAST_S)
        self._stopped = True
        self._thread.join(timeout=_LAST_S)
        if self._exporter is not None:
            self._exporter.close()

    def _try_export(self) -> Exporter | None:
        end = time.monotonic() + _NAMELESS_S
        while True:
            try:
                exporter = Exporter(self._path, owner=self._identity)
                self._exported = set(exporter.versions()) if exporter.goes_on else set()
                return exporter
            except Occupied as error:
                if error.owner == self._identity:
                    return None
                if time.monotonic() > end:
                    raise
            time.sleep(0.02)

    def _run(self) -> None:
        while self._exporter is None:
            if self._closing.wait(_LOOK_S):
                return
            try:
                self._exporter = self._try_export()
            except (Error, OSError) as error:
                log.warning("store: %s is not kept any more: %s", self._path, error)
                return
        while self._works():
            last = self._closing.is_set()
            try:
                self._export_all(self._exporter)
                if last:
                    return
                for _ in self._store.watch(timeout=_LOOK_S, after=self._newest):
                    break
            except Error as error:
                if last or not self._works():
                    return
                log.warning("store: versions cannot be exported now: %s", error)
                threading.Event().wait(0.5)

    def _works(self) -> bool:
        return not self._stopped and not self._store.closed

    def _export_all(self, exporter: Exporter) -> None:
        kept = [version.number for version in self._store.versions()]
        for number in kept:
            if number not in self._exported and not self._stopped:
                self._export(exporter, number)
        self._failed &= set(kept)
        self._exported &= set(kept)
        self._newest = max(kept, default=0)
        exporter.retain(sorted(self._exported))

    def _export(self, exporter: Exporter, number: int) -> None:
        try:
            with (
                self._store._leased(number, None) as (manifest, _),
                exporter.begin(archive.describe(manifest)) as draft,
            ):
                targets = {
                    name: numpy.frombuffer(view, numpy.uint8)
                    for name, view in draft.targets.items()
                }
                self._store._read_bytes(number, targets, None)
                targets.clear()
                draft.publish(number > max(self._exported, default=0))
            self._exported.add(number)
        except Gone:
            return  # it was retired meanwhile
        except (Error, OSError) as error:
            if number not in self._failed:
                log.warning("store: version %d cannot be exported yet: %s", number, error)
            self._failed.add(number)
