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

# How long calls fail at once after one has found no answer in time. Then one call tries again.
_REST_S = 1.0
# An error after such a part of the limit means that there was no answer.
_NEARLY = 0.9


class Guard:
    """The source as the file system sees it. Every method raises only OSError: ESTALE for a version
    that is gone, EIO for a store that cannot be reached.

    Each call may take ``limit_s`` seconds; a commit, ``commit_limit_s``. After a call that failed
    only when its time was up, others fail at once: threads and readers do not wait in turn.
    """

    def __init__(self, source: Source, limit_s: float, commit_limit_s: float) -> None:
        self._source = source
        self._limit_s = limit_s
        self._commit_limit_s = commit_limit_s
        self._lock = threading.Lock()
        self._lost = False
        self._next_try = 0.0

    def versions(self) -> Sequence[VersionInfo]:
        with self._call("versions"):
            return self._source.versions(self._limit_s)

    def manifest(self, version: int) -> Manifest:
        with self._call("manifest"):
            return self._source.manifest(version, self._limit_s)

    def lease(self, version: int) -> Lease:
        with self._call("lease"):
            return self._source.lease(version, self._limit_s)

    def read(self, version: int, pieces: Sequence[Piece]) -> None:
        with self._call("read"):
            self._source.read(version, pieces, self._limit_s)

    def commit(self, tensors: Sequence[StagedTensor], metadata: Mapping[str, Any]) -> int:
        """Also raises InvalidArgument."""
        with self._call("commit", limit_s=self._commit_limit_s):
            return self._source.commit(tensors, metadata, self._commit_limit_s)

    @contextlib.contextmanager
    def _call(self, what: str, limit_s: float = 0.0) -> Iterator[None]:
        self._admit(what)
        end = time.monotonic() + _NEARLY * (limit_s or self._limit_s)
        is_lost = False
        try:
            yield
        except InvalidArgument:
            raise
        except LookupError as error:
            raise OSError(errno.ESTALE, f"the version is gone: {error}") from error
        except Exception as error:
            is_lost = time.monotonic() >= end
            log.warning("%s: %s: %s", what, type(error).__name__, error)
            raise OSError(errno.EIO, str(error)) from error
        finally:
            with self._lock:
                self._lost = is_lost
                self._next_try = time.monotonic() + _REST_S

    def _admit(self, what: str) -> None:
        """Raises EIO if the store is lost. Once in a while one call may try it."""
        if not self._lost:
            return
        with self._lock:
            now = time.monotonic()
            if now >= self._next_try:
                self._next_try = now + self._limit_s + _REST_S
                return
        raise OSError(errno.EIO, f"{what}: the store does not answer")
