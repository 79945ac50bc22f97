"""The writer's side of a store: what was put, and commits."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import Any, NamedTuple, Protocol

import numpy

from ringcoll.errors import Aborted, Error, InternalError, InvalidArgument, PeerLost
from ringcoll.log import log
from ringcoll.weights import arrays, slices
from ringcoll.weights.catalog import Json
from ringcoll.weights.control import Control
from ringcoll.weights.group import Group
from ringcoll.weights.holder import Holder, Worker
from ringcoll.weights.names import path_of
from ringcoll.weights.saved_tables import SavedArray
from ringcoll.weights.session import Session

_GRACE_S = 3.0  # the leader answers at the deadline; a writer waits this much longer for that


class SavesTables(Protocol):
    """What a commit asks of the store's tables."""

    def settle_tables(self, limit: float) -> None:
        """Waits until all calls of this process on tables have ended. Raises Timeout."""
        ...

    def save_tables(
        self, tables: Mapping[str, Json], rank: int, size: int, limit: float
    ) -> list[SavedArray]:
        """This rank's share of the shards."""
        ...


class Put(NamedTuple):
    """A tensor, or a slice of one, that was put. ``source`` returns its bytes when it is copied."""

    entry: list[Any]  # [name, dtype, shape, offset or None, length of axes or None], as in stages
    size: int
    key: tuple[Any, ...] | None
    source: Callable[[], numpy.ndarray]


class _Known(NamedTuple):
    """What was put last under a name. A tensor with the same key needs no second look."""

    entry: list[Any]
    size: int
    key: tuple[Any, ...] | None


class Pending:
    """A commit under way. Any thread may use it."""

    def __init__(self) -> None:
        self._copied = threading.Event()
        self._done = threading.Event()
        self._version = 0
        self._error: BaseException | None = None

    def copied(self, timeout: float | None = None) -> None:
        """Waits until the tensors have been copied and may be written again. Raises the commit's
        error if it failed before, and the builtin ``TimeoutError`` after ``timeout`` seconds: then
        the commit goes on."""
        if not self._copied.wait(timeout):
            raise TimeoutError(f"the tensors are not copied within {timeout} s; the commit goes on")
        if self._done.is_set() and self._error is not None:
            raise self._error

    def wait(self, timeout: float | None = None) -> int:
        """Waits until the version can be read and has its copies, and returns its number. Raises
        the commit's error, and the builtin ``TimeoutError`` after ``timeout`` seconds: then the
        commit goes on."""
        if not self._done.wait(timeout):
            raise TimeoutError(f"the commit has not ended within {timeout} s; it goes on")
        if self._error is not None:
            raise self._error
        return self._version

    def done(self) -> bool:
        """Whether the commit has ended, with or without an error. Does not block."""
        return self._done.is_set()

    def _set_copied(self) -> None:
        self._copied.set()

    def _finish(self, version: int, error: BaseException | None) -> None:
        self._version, self._error = version, error
        self._done.set()
        self._copied.set()


def _put_of(saved: SavedArray) -> Put:
    """An array of a shard as something that was put."""
    array = saved.array
    entry: list[Any] = [array.name, array.dtype, list(array.shape), None, None]
    if array.place is not None:
        shape, offset = array.place["global_shape"], array.place["offset"]
        entry = [array.name, array.dtype, list(shape), list(offset), list(array.shape)]
    return Put(entry, array.bytes, None, lambda: saved.data)


class _Commit(NamedTuple):
    pending: Pending
    sequence: int
    puts: dict[str, Put]
    deleted: list[str]
    metadata: Mapping[str, Any] | None
    timeout: float
    time: float


class Writer:
    """Puts and commits of one rank of a writers' group."""

    def __init__(self, control: Control, session: Session, holder: Holder, group: Group) -> None:
        self._control, self._session, self._holder = control, session, holder
        self._group = group
        self._lock = threading.Lock()
        self._puts: dict[str, Put] = {}
        self._last: dict[str, _Known] = {}  # by name; it keeps no tensor alive
        self._deleted: set[str] = set()
        self._sequence = 0
        self._entries: list[list[Any]] = []  # of the commit before
        self._token = 0
        self._worker = Worker("ringcoll-store-commit")
        self._running: Pending | None = None
        self._closed = False
        self.tables: SavesTables | None = None

    # What the next commit consists of.

    def put(
        self,
        name: str,
        tensor: Any,
        global_shape: Sequence[int] | None,
        offset: Sequence[int] | None,
    ) -> None:
        """Remembers a tensor. See Store.put()."""
        key = arrays.key_of(tensor)
        last = self._last.get(name)
        if key is not None and last is not None and last.key == key and global_shape is None:
            entry = last.entry
            put = Put(last.entry, last.size, key, lambda: arrays.bytes_of(tensor))
        else:
            put = self._describe(name, tensor, global_shape, offset)
            entry = put.entry
        with self._lock:
            self._puts[entry[0]] = put
            self._last[name] = _Known(entry, put.size, put.key)
            self._deleted.discard(name)

    def put_source(
        self, name: str, dtype: str, shape: Sequence[int], source: Callable[[], numpy.ndarray]
    ) -> None:
        """Remembers a whole tensor whose bytes a function will return."""
        path_of(name)
        size = slices.size_of(shape) * arrays.itemsize(dtype)
        entry: list[Any] = [name, dtype, list(shape), None, None]
        put = Put(entry, size, None, source)
        with self._lock:
            self._puts[name] = put
            self._last.pop(name, None)
            self._deleted.discard(name)

    def clear(self) -> None:
        """Forgets what was put and deleted since the last commit."""
        with self._lock:
            self._puts.clear()
            self._deleted.clear()

    def delete(self, name: str) -> None:
        """Takes a name out of the next version."""
        with self._lock:
            self._puts.pop(name, None)
            self._last.pop(name, None)
            self._deleted.add(name)

    def _describe(
        self,
        name: str,
        tensor: Any,
        global_shape: Sequence[int] | None,
        offset: Sequence[int] | None,
    ) -> Put:
        if not isinstance(name, str):
            raise InvalidArgument(f"the name of a tensor is a text, not {name!r}")
        path_of(name)  # names have to be possible as files
        if (global_shape is None) != (offset is None):
            raise InvalidArgument(f"put {name!r}: pass global_shape and offset, or neither")
        if arrays.is_dtensor(tensor):
            if global_shape is not None:
                raise InvalidArgument(f"put {name!r}: a DTensor knows its own slice")
            place = arrays.locate(tensor)
            found = arrays.facts(place.local)
            begin, length = map(list, place.slice)
            entry: list[Any] = [name, found.dtype, list(place.shape), begin, length]
            tensor, key = place.local, None
        else:
            found = arrays.facts(tensor)
            key = arrays.key_of(tensor) if global_shape is None else None
            entry = [name, found.dtype, list(found.shape), None, None]
        if global_shape is not None and offset is not None:
            shape, begin = [int(n) for n in global_shape], [int(n) for n in offset]
            if not slices.fits(slices.Slice(tuple(begin), found.shape), shape):
                raise InvalidArgument(
                    f"put {name!r}: a slice of shape {list(found.shape)} at {begin} is not within "
                    f"{shape}"
                )
            entry = [name, found.dtype, shape, begin, list(found.shape)]
        size = slices.size_of(found.shape) * arrays.itemsize(found.dtype)
        return Put(entry, size, key, lambda: arrays.bytes_of(tensor))

    # Commits.

    def commit(self, metadata: Mapping[str, Any] | None, timeout: float) -> Pending:
        """Begins a commit of what was put since the last one. Does no work for each tensor."""
        if not isinstance(metadata, (Mapping, NoneType)):
            raise InvalidArgument(f"commit: metadata={metadata!r} is no dictionary")
        try:
            metadata = json.loads(json.dumps(metadata))  # as they are now
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"commit: metadata that JSON has not: {error}") from None
        pending = Pending()
        with self._lock:
            if self._closed:
                raise Aborted("the store is closed")
            self._sequence += 1
            puts, self._puts = self._puts, {}
            deleted, self._deleted = sorted(self._deleted), set()
            self._running = pending
            rest = (deleted, metadata, timeout, time.time())
            work = _Commit(pending, self._sequence, puts, *rest)
        self._worker.submit(lambda: self._run(work))
        return pending

    @property
    def group(self) -> Group:
        """The processes with which this one commits."""
        return self._group

    def regroup(self, meet: Callable[[], Group]) -> None:
        """Commits with another group from now on. See Store.regroup()."""
        if self._running is not None and not self._running.done():
            raise InvalidArgument("regroup: a commit is under way: wait for it first")
        group = meet()
        with self._lock:
            self._group = group
            self._sequence, self._entries = 0, []

    def close(self) -> None:
        """Commits under way end with Aborted."""
        with self._lock:
            self._closed = True
            running = self._running
        self._worker.stop(5.0)
        if running is not None and not running.done():
            running._finish(0, Aborted("the store was closed"))

    def _run(self, work: _Commit) -> None:
        version = 0
        error: Exception | None = None
        try:
            version = self._decide(work)
        except (Error, MemoryError, OSError) as failure:
            error = failure
        except Exception as failure:  # the waiting thread has to learn of a defect
            error = InternalError(f"the commit failed: {failure!r}")
            error.__cause__ = failure
        if error is not None:
            self._put_back(work)
        work.pending._finish(version, error)

    def _base(self, work: _Commit) -> Json:
        """What names a commit in all messages about it."""
        return {"group": self._group.id, "sequence": work.sequence, "rank": self._group.rank}

    def _put_back(self, work: _Commit) -> None:
        """A commit that has failed changes nothing: what was put stays put."""
        with self._lock:
            for name, put in work.puts.items():
                if name not in self._deleted:
                    self._puts.setdefault(name, put)
            self._deleted.update(name for name in work.deleted if name not in self._puts)

    def _decide(self, work: _Commit) -> int:
        stage = f"{self._group.id}.{work.sequence}"
        copied: list[str] = []
        try:
            if self.tables is not None:
                self.tables.settle_tables(work.timeout)
            return self._negotiate(work, stage, copied)
        except BaseException:
            with contextlib.suppress(Error):
                self._session.post(self._base(work) | {"q": "abandon"})
            raise
        finally:
            if self._control.node is not None:
                self._control.run(lambda node, now: node.unpin(now, stage))
            else:
                self._holder.free(copied)

    def _negotiate(self, work: _Commit, stage: str, copied: list[str]) -> int:
        """Sends the stage until it is decided, to one leader or several."""
        base = self._base(work)
        puts = list(work.puts.values())
        send_entries = self._renew_entries(puts)
        deadline = time.monotonic() + work.timeout
        staged: dict[str, Any] | None = None
        has_tables = False
        while True:
            ask = base | {"q": "stage", "size": len(self._group.writers), "token": str(self._token)}
            ask |= {"entries": send_entries, "deleted": work.deleted, "metadata": work.metadata}
            ask["tables"] = has_tables
            ask |= {
                "time": work.time,
                "writers": self._group.writers if send_entries is not None else None,
            }
            left = max(0.1, deadline - time.monotonic())
            answer = self._session.request(ask | {"timeout": left}, left + _GRACE_S)
            if "version" in answer:
                work.pending._set_copied()
                return int(answer["version"])
            if answer.get("again") == "entries":
                send_entries = self._entries
                continue
            if answer.get("again") == "tables" and not has_tables:
                puts += map(_put_of, self._save_tables(answer["tables"], deadline))
                has_tables = True
                send_entries = self._renew_entries(puts)
                continue
            if staged is None:
                chosen = range(len(puts)) if answer["copy"] == "all" else answer["copy"]
                staged = self._copy(stage, puts, chosen, copied)
                work.pending._set_copied()
            elif self._lacks(staged, answer["copy"], len(puts)):
                raise PeerLost("another leader shares the tensors out differently: commit again")
            left = max(0.1, deadline - time.monotonic())
            answer = self._session.request(base | {"q": "staged"} | staged, left + _GRACE_S)
            if "version" in answer:
                if answer.get("problem"):
                    log.warning(
                        "store: version %d has fewer copies than wanted, until holders can make "
                        "them: %s",
                        answer["version"],
                        answer["problem"],
                    )
                return int(answer["version"])
            send_entries = None  # the leader does not know the stage: another one leads now

    def _renew_entries(self, puts: Sequence[Put]) -> list[list[Any]] | None:
        """The entries to send; None for those of the last commit, which a leader remembers."""
        entries = [put.entry for put in puts]
        if entries == self._entries:
            return None
        self._entries = entries
        self._token += 1
        return entries

    def _save_tables(self, tables: Mapping[str, Json], deadline: float) -> list[SavedArray]:
        assert self.tables is not None
        size, left = len(self._group.writers), max(0.1, deadline - time.monotonic())
        return self.tables.save_tables(tables, self._group.rank, size, left)

    def _copy(
        self, stage: str, puts: Sequence[Put], chosen: Sequence[int], copied: list[str]
    ) -> dict[str, Any]:
        """Copies the chosen tensors to memory of this process."""
        pids = [f"{stage}/{self._group.rank}/{index}" for index in chosen]
        jobs = [(p, puts[i].source, puts[i].size) for p, i in zip(pids, chosen, strict=True)]
        done = self._holder.copy_in(jobs)
        copied += pids
        if self._control.node is not None:
            self._control.run(lambda node, now: node.pin(stage, done.places, done.regions))
        pieces = [
            [index, *done.places[pid], done.checksums[pid]]
            for pid, index in zip(pids, chosen, strict=True)
        ]
        return {"pieces": pieces, "regions": done.regions}

    @staticmethod
    def _lacks(staged: dict[str, Any], copy: Any, count: int) -> bool:
        wanted = set(range(count)) if copy == "all" else set(copy)
        return wanted != {piece[0] for piece in staged["pieces"]}
