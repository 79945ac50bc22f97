"""The store of weights: versions of named tensors in the memory of several processes.

>>> store = ringcoll.Store("weights", world, key="secret")       # on all ranks
>>> store.put_state_dict(model.state_dict())
>>> version = store.commit()
>>> store.address
'ringcoll://10.0.0.5:4711/weights'

>>> guest = ringcoll.connect("ringcoll://10.0.0.5:4711/weights", key="secret")  # elsewhere
>>> for version in ringcoll.Store("weights", guest).watch():
...     store.get_state_dict(out=model.state_dict(), version=version)
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy

from ringcoll.errors import Aborted, Error, Gone, InvalidArgument, Timeout
from ringcoll.weights import agents, archive, arrays, goals, group, opening, slices
from ringcoll.weights.arrays import Target
from ringcoll.weights.catalog import Json
from ringcoll.weights.follower import Follower
from ringcoll.weights.leases import Lease, Leases
from ringcoll.weights.manifest import Manifest
from ringcoll.weights.queries import LATEST
from ringcoll.weights.reading import Reader, Want
from ringcoll.weights.table_methods import TableMethods
from ringcoll.weights.updates import Goal, Preparer, Update
from ringcoll.weights.version import Version
from ringcoll.weights.writing import Pending, Writer

__all__ = ["Lease", "Pending", "Store", "Update", "Version"]

_OPEN_S = 30.0
_LONG_S = 86400.0

_stores: weakref.WeakSet[Store] = weakref.WeakSet()


class Store(TableMethods):
    """Versions of named tensors, kept by several processes and read by any number.

    ``Store(name, world)`` is collective over a communicator: its ranks become the holders, and one
    writers' group. ``Store(name, guest)`` opens the store to which a guest of
    :func:`ringcoll.connect` has come; ``hold=True`` makes the guest a holder as well. Each guest is
    a writers' group of one.

    A tensor is a NumPy array, a CPU tensor of torch, a DTensor, or anything with ``__array__``,
    DLPack or the buffer protocol, of any type of elements. A name may be the path of a file.

    ``replicas`` is how many further copies each tensor has: by default 1 if the holders are on two
    hosts or more, else none. They lie on other hosts if there are any. ``keep`` is how many
    versions are kept, beside those that are leased. ``key`` admits guests who know it, on ``port``
    or a free one; :attr:`address` is what they need beside. ``path`` is a directory, best on tmpfs,
    in which one process of those of a host that name it keeps the versions as files
    (:mod:`ringcoll.weights.export`). With ``serve=False`` a holder has versions, but serves no
    parameter tables (:meth:`table`).

    All holders are equal but for one, the leader, which decides. When it is lost another takes
    over. A commit is never lost as long as a copy lives. While so many holders do not answer that
    the others cannot know what they do, commits wait and raise :class:`ringcoll.Timeout`, and
    reading goes on.

    Any thread may call any method. A child process cannot use the store of its parent. ``timeout``
    of a method is in seconds; without it, it is that of the store.

    Errors: :class:`ringcoll.InvalidArgument`, the call makes no sense; :class:`ringcoll.Gone`, the
    version is not kept any more; :class:`ringcoll.PeerLost`, who is needed has ended;
    :class:`ringcoll.Timeout`; :class:`ringcoll.TransportError`, the bytes of a tensor are wrong on
    all holders, or the system has no memory for a version, which the builtin ``MemoryError`` may
    say too; :class:`ringcoll.Aborted`, the store is closed. After an error of a method that
    reads, ``out`` has unspecified values. The store stays usable.
    """

    def __init__(
        self,
        name: str,
        ranks_or_guest: Any,
        *,
        replicas: int | None = None,
        keep: int = 2,
        path: str | Path | None = None,
        key: str | None = None,
        port: int = 0,
        hold: bool = False,
        serve: bool = True,
        timeout: float = 60.0,
    ) -> None:
        settings = opening.Settings(name, replicas, keep, serve)
        settings.check()
        self.name = name
        self._timeout = float(timeout)
        self._owner = os.getpid()
        self._agent = agents.agent_of(ranks_or_guest)
        if hasattr(ranks_or_guest, "address"):
            opened = opening.open_guest(ranks_or_guest, settings, hold, min(timeout, _OPEN_S))
        else:
            opened = opening.open_ranks(ranks_or_guest, settings, key, port)
        self._control, self._session = opened.control, opened.session
        self._info, self._address = opened.info, opened.address
        self._me, self._holder = opened.control.me, opened.holder
        self._reader = Reader(self._agent, self._session.lost)
        self._preparer = Preparer(self._reader, self._session)
        self._identity = opened.identity
        self._writer = Writer(self._control, self._session, self._holder, opened.group)
        self._leases = Leases(self._session, self._me, self._info)
        self._writer.tables = self
        if self._control.tables is not None:
            self._control.tables.read = self._read_saved
        self._closed = False
        self._files: Any = None
        _stores.add(self)
        if path is not None:
            self._follow_files(Path(path))

    # What there is.

    @property
    def address(self) -> str | None:
        """Where guests come to: "ringcoll://10.0.0.5:4711/weights". None without a key."""
        return self._address

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._closed

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        return f"<ringcoll.Store {self.name!r}: {self._me}{state}>"

    def versions(self, timeout: float | None = None) -> list[Version]:
        """The versions that are kept, the oldest first."""
        answer = self._request({"q": "versions"}, timeout)
        return [Version.of(each) for each in answer["versions"]]

    def names(
        self, version: int | str = LATEST, timeout: float | None = None
    ) -> dict[str, tuple[str, tuple[int, ...]]]:
        """The type and shape of each tensor of a version, by name."""
        with self._leased(version, timeout) as (manifest, _):
            return {name: (t.dtype, t.shape) for name, t in manifest.tensors.items()}

    def info(self, timeout: float | None = None) -> dict[str, Any]:
        """The holders with their hosts and bytes, who leads, replicas that are wanted and there,
        and what this process has read, by distance: "process", "host", "leaf", "far"."""
        answer = self._request({"q": "info"}, timeout)
        answer.pop("a", None)
        kinds = ("process", "host", "leaf", "far")
        read = {kinds[far]: size for far, size in self._reader.read_bytes.items()}
        mine = {"id": self._me, "read": read} | self._holder.info()
        served = self._agent.stats().get("served", {})
        return answer | {"name": self.name, "this": mine | {"served": served}}

    # Writing.

    def put(
        self,
        name: str,
        tensor: Any,
        global_shape: Sequence[int] | None = None,
        offset: Sequence[int] | None = None,
    ) -> None:
        """Remembers a tensor for the next commit, which copies it. With ``global_shape`` and
        ``offset`` it is a slice of a tensor whose other slices the ranks of the group put. A
        DTensor is put as the slice that it is. Ranks that put the same slice have the same values:
        one of them copies it."""
        self._check()
        self._writer.put(name, tensor, global_shape, offset)

    def put_state_dict(self, state_dict: Mapping[str, Any], prefix: str = "") -> None:
        """:meth:`put` of all tensors and numbers in nested dictionaries and lists, with names such
        as "layer.0.weight"."""
        self._check()
        for name, tensor in arrays.flatten(state_dict, prefix):
            self._writer.put(name, tensor, None, None)

    def delete(self, name: str) -> None:
        """Takes a tensor out of later versions, from the next commit on. A name that there is not
        is ignored."""
        self._check()
        self._writer.delete(name)

    def commit(
        self,
        metadata: Mapping[str, Any] | None = None,
        wait: bool = True,
        timeout: float | None = None,
    ) -> Any:
        """Makes a version of what was put, and of all names that were put in earlier versions. All
        ranks of the group call it, as often as the others.

        Returns the version's number when the version can be read and has its replicas. With
        ``wait=False`` it returns a :class:`Pending` at once; the tensors must not be written until
        :meth:`Pending.copied` returns. ``metadata`` is anything that JSON has; that of the lowest
        rank that passes any counts.

        Raises :class:`ringcoll.Mismatch` and :class:`ringcoll.InvalidArgument` on all ranks if what
        they have put does not fit together, :class:`ringcoll.PeerLost` if a rank is lost, and
        :class:`ringcoll.Timeout` if a rank or a holder does not answer. A commit that fails changes
        nothing, and what was put stays put; after a Timeout that says so, it may become a version
        later.
        """
        self._check()
        pending = self._writer.commit(metadata, self._limit(timeout))
        return pending.wait() if wait else pending

    def regroup(self, ranks: Any) -> None:
        """From now on the ranks of this communicator commit together, in place of those before: for
        a job that goes on without a rank that was lost, or with others that have joined. Collective
        over the communicator. All its ranks have this store open, as ranks or as guests that hold.
        What was put stays put. Raises InvalidArgument while a commit is under way, and
        :class:`ringcoll.Mismatch` if some rank has another store."""
        self._check()
        self._writer.regroup(lambda: group.meet(ranks, self._me, self._info, self._identity))

    # Reading.

    def get(
        self,
        name: str,
        version: int | str = LATEST,
        out: Any = None,
        offset: Sequence[int] | None = None,
        shape: Sequence[int] | None = None,
        since: int | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Reads a tensor, or the slice of it at ``offset`` with ``shape``, whatever the slices that
        were put. Returns ``out``, or a new NumPy array. ``out`` may be a DTensor, which gets its
        shard. If ``out`` has the values of version ``since``, only changes are read where that is
        cheaper."""
        if since is not None:
            wanted = None if out is None else {name: out}
            self._update(version, since, wanted, "", timeout, (offset, shape), True).apply()
            return out

        def choose(manifest: Manifest) -> tuple[list[Goal], Any]:
            goal, made = goals.goal_of(manifest, name, out, offset, shape)
            return [goal], made

        return self._read(version, choose, timeout)[1]

    def get_state_dict(
        self,
        out: Any = None,
        version: int | str = LATEST,
        since: int | None = None,
        prefix: str = "",
        timeout: float | None = None,
    ) -> Any:
        """Reads many tensors of one version: those whose names begin with ``prefix`` as a flat
        dictionary of NumPy arrays, or those that ``out`` has, nested as for :meth:`put_state_dict`.
        Tensors of ``out`` are written, numbers are replaced. Returns the dictionary. ``since`` is
        as for :meth:`get`."""
        if since is not None:
            return self._update(version, since, out, prefix, timeout, in_place=True).apply()
        if out is None:
            return self._read(version, lambda m: goals.all_goals(m, prefix), timeout)[1]
        leaves = list(arrays.flatten(out, prefix))
        _, numbers = self._read(version, lambda m: goals.goals_of(m, leaves), timeout)
        return goals.set_numbers(out, prefix, numbers)

    def prepare(
        self,
        version: int | str = LATEST,
        since: int | None = None,
        out: Any = None,
        prefix: str = "",
        timeout: float | None = None,
    ) -> Update:
        """Reads what changes the tensors of ``out`` from the values of version ``since`` to those
        of ``version``, while they are still in use. :meth:`Update.apply` then changes them.
        Without ``since``, or if that version is not kept any more, tensors are read as a whole. The
        version stays leased until the update is applied or closed.

        "latest" is the newest version at the time of this call, so it may be newer than the one
        that :meth:`watch` has announced. ``version`` of the update says which it is. To get exactly
        the announced version, pass its number; Gone is raised if it is not kept any more."""
        return self._update(version, since, out, prefix, timeout)

    def _update(
        self,
        version: int | str,
        since: int | None,
        out: Any,
        prefix: str,
        timeout: float | None,
        part: tuple[Any, Any] = (None, None),
        in_place: bool = False,
    ) -> Update:
        if out is None:
            raise InvalidArgument("since= needs out=, the earlier values; so does prepare()")
        self._check()
        leaves = list(arrays.flatten(out, prefix))
        leased = self._try_lease(since, timeout) if since is not None else None
        try:
            return self._prepare(version, leased, out, prefix, leaves, timeout, part, in_place)
        except BaseException:
            if leased is not None:
                leased.close()
            raise

    def _prepare(
        self,
        version: int | str,
        before: Lease | None,
        out: Any,
        prefix: str,
        leaves: list[tuple[str, Any]],
        timeout: float | None,
        part: tuple[Any, Any],
        in_place: bool,
    ) -> Update:
        def attempt(manifest: Manifest, lease: str | None, left: float) -> tuple[Update, bool]:
            wanted, numbers = goals.goals_of(manifest, leaves, part)

            def finish() -> None:
                self._leases.release(lease)
                if before is not None:
                    before.close()

            old = before.manifest if before is not None else None
            result = functools.partial(goals.set_numbers, out, prefix, numbers)
            arguments = (manifest, old, wanted, lease is not None, finish, result, left)
            return self._preparer.prepare(*arguments, in_place)

        update: Update = self._leases.use(version, attempt, self._limit(timeout), keep=True)
        return update

    def lease(self, version: int | str = LATEST, timeout: float | None = None) -> Lease:
        """Keeps a version readable until the lease is closed, whatever is committed meanwhile. As a
        context manager it gives the version's number. A lease ends with the process, and may end
        when the process cannot be reached for more than 2 s."""
        self._check()
        return self._leases.lease(version, self._limit(timeout))

    def watch(self, timeout: float | None = None, after: int | None = None) -> Iterator[int]:
        """Yields the numbers of new versions, the newest only: versions that were committed while
        the program was busy are skipped. It ends when no version has come for ``timeout`` seconds,
        and when the store is closed. ``after`` is the version that the program has already; by
        default the newest at the time of the call.

        A newer version may have come when the program reads, and is then what "latest" means. Pass
        the number as ``version`` to read exactly the announced one, as long as it is kept."""
        self._check()
        newest = self._session.begin_watch(self._timeout)
        return self._watch(newest if after is None else after, timeout)

    def _watch(self, last: int, timeout: float | None) -> Iterator[int]:
        try:
            while True:
                newest = self._session.wait_newer(last, timeout)
                if newest is None or self._closed:
                    return
                last = newest
                yield newest
        finally:
            self._session.end_watch()

    # Files.

    def save(
        self, path: str | Path, version: int | str = LATEST, timeout: float | None = None
    ) -> Path:
        """Writes a version to a safetensors file, which replaces ``path`` when it is whole. Reads
        and writes in stretches, so it takes little memory. Returns the path. Raises
        InvalidArgument if a name or type does not fit the format, and OSError."""
        limit = _LONG_S if timeout is None else timeout
        with self.lease(version) as number:
            return archive.save(self, Path(path), number, limit)

    def restore(self, path: str | Path, timeout: float | None = None) -> int:
        """Makes a version of a safetensors file, and of nothing else. All ranks of the group call
        it, and see the file. Returns the version. Raises InvalidArgument if the file is malformed,
        and OSError."""
        self._check()
        return archive.restore(self, Path(path), timeout)

    # The end.

    def close(self) -> None:
        """Leaves the store. What this process holds is freed; others take copies from elsewhere.
        Calls in flight end with :class:`ringcoll.Aborted`. Closing again does nothing. Does not
        raise."""
        if self._closed or os.getpid() != self._owner:
            return
        files, self._files = self._files, None
        if files is not None:
            files.close()
        self._closed = True
        _stores.discard(self)
        self._control.stop()
        self._writer.close()
        if self._control.tables is not None:
            self._control.tables.close()
        with contextlib.suppress(Error):
            self._holder.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # Requests and manifests.

    def _check(self) -> None:
        if os.getpid() != self._owner:
            raise InvalidArgument("the store belongs to the parent process: open it here again")
        if self._closed:
            raise Aborted("the store is closed")

    def _request(self, body: Json, timeout: float | None) -> Json:
        self._check()
        return self._session.request(body, self._limit(timeout))

    @contextlib.contextmanager
    def _leased(self, version: int | str, timeout: float | None) -> Iterator[tuple[Manifest, bool]]:
        """A manifest, and whether its version is leased meanwhile."""
        lease, manifest = self._leases.open(version, self._limit(timeout))
        try:
            yield manifest, lease is not None
        finally:
            self._leases.release(lease)

    def _try_lease(self, version: int, timeout: float | None) -> Lease | None:
        """Leases the version whose values the program has, if it is still there."""
        try:
            return self.lease(version, timeout)
        except (Gone, InvalidArgument, Timeout):
            return None

    def _limit(self, timeout: float | None) -> float:
        return self._timeout if timeout is None else float(timeout)

    def _read_bytes(
        self, version: int | str, targets: Mapping[str, numpy.ndarray], timeout: float | None
    ) -> None:
        """Reads whole tensors into contiguous bytes."""

        def choose(manifest: Manifest) -> tuple[list[Goal], None]:
            wanted = [
                Goal(name, slices.whole(manifest.tensor(name).shape), Target.of_bytes(data))
                for name, data in targets.items()
            ]
            return wanted, None

        self._read(version, choose, timeout)

    def _read_saved(self, version: int, names: list[str]) -> dict[str, numpy.ndarray]:
        """Those of these tensors that a version has."""
        there = self.names(version)
        found = {n: arrays.new_array(*there[n]) for n in names if n in there}
        self._read_bytes(
            version, {n: a.reshape(-1).view(numpy.uint8) for n, a in found.items()}, None
        )
        return found

    def _read(
        self,
        version: int | str,
        choose: Callable[[Manifest], tuple[list[Goal], Any]],
        timeout: float | None,
    ) -> tuple[int, Any]:
        self._check()

        def attempt(manifest: Manifest, lease: str | None, left: float) -> tuple[Any, bool]:
            wanted, result = choose(manifest)
            wants = [Want(goal.name, goal.place, goal.target.data) for goal in wanted]
            exact = self._reader.read(manifest, wants, lease is not None, left)
            for goal in wanted:
                goal.target.finish()
            return (manifest.number, result), exact

        found: tuple[int, Any] = self._leases.use(version, attempt, self._limit(timeout))
        return found

    def _follow_files(self, path: Path) -> None:
        try:
            self._files = Follower(self, path, self._identity)
        except BaseException:
            self.close()
            raise


@atexit.register
def _close_all() -> None:
    """Others then see this process leave, not die."""
    for store in list(_stores):
        store.close()
