"""A source behind a guard: errors become those of a file system, and a lost store fails at once."""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ringcoll.errors import InvalidArgument
from ringcoll.weights.formats import Manifest, Piece
from ringcoll.weights.source import Lease, Source, StagedTensor, VersionInfo

log = logging.getLogger("ringcoll.mount")

# How long calls fail at once after one was overdue. Then one call tries again.
_REST_S = 1.0
# While so many threads are stuck in the source, no other call is tried. Without that limit, a
# source that never returns would collect threads for ever.
_MOST_STUCK = 32


class Guard:
    """The source as the file system sees it. Every method raises only OSError: ESTALE for a version
    that is gone, EIO for a store that cannot be reached.

    Each call may take ``limit_s`` seconds; a commit, ``commit_limit_s``.
    """

    def __init__(self, source: Source, limit_s: float, commit_limit_s: float) -> None:
        self._source = source
        self.limit_s = limit_s
        self.commit_limit_s = commit_limit_s
        self._lock = threading.Lock()
        self._lost = False
        self._next_try = 0.0
        self._stuck = 0

    def versions(self) -> Sequence[VersionInfo]:
        with self._call("versions"):
            return self._source.versions(self.limit_s)

    def manifest(self, version: int) -> Manifest:
        with self._call("manifest"):
            return self._source.manifest(version, self.limit_s)

    def lease(self, version: int) -> Lease:
        with self._call("lease"):
            return self._source.lease(version, self.limit_s)

    def read(self, version: int, pieces: Sequence[Piece]) -> None:
        with self._call("read"):
            self._source.read(version, pieces, self.limit_s)

    def commit(self, tensors: Sequence[StagedTensor], metadata: Mapping[str, Any]) -> int:
        """Also raises InvalidArgument."""
        with self._call("commit", limit_s=self.commit_limit_s):
            return self._source.commit(tensors, metadata, self.commit_limit_s)

    @contextlib.contextmanager
    def _call(self, what: str, limit_s: float = 0.0) -> Iterator[None]:
        self._admit(what)
        end = time.monotonic() + (limit_s or self.limit_s)
        try:
            yield
            self._lost = False
        except (LookupError, InvalidArgument) as error:
            self._lost = False  # it answers
            if isinstance(error, InvalidArgument):
                raise
            raise OSError(errno.ESTALE, f"the version is gone: {error}") from error
        except Exception as error:
            log.warning("%s: %s: %s", what, type(error).__name__, error)
            raise OSError(errno.EIO, str(error)) from error
        finally:
            self._check_time(end)

    def overdue(self) -> None:
        """The watchdog has given up waiting for a call, which may never return."""
        with self._lock:
            self._lost = True
            self._stuck += 1
            self._next_try = time.monotonic() + _REST_S

    def returned(self) -> None:
        """A call that was overdue has returned after all."""
        with self._lock:
            self._stuck -= 1

    def _admit(self, what: str) -> None:
        if not self._lost and self._stuck < _MOST_STUCK:
            return
        with self._lock:
            now = time.monotonic()
            if now >= self._next_try and self._stuck < _MOST_STUCK:
                self._next_try = now + _REST_S
                return
        raise OSError(errno.EIO, f"{what}: the store does not answer")

    def _check_time(self, end: float) -> None:
        """A call that raised only when its time was up also means that the store is lost."""
        now = time.monotonic()
        if now >= end:
            with self._lock:
                self._lost = True
                self._next_try = now + _REST_S
