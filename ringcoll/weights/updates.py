"""Reading a version into tensors that have the values of an earlier one: what has changed is moved,
where that is cheaper.

For each tensor whose pieces differ, the price of a delta (its bytes, and the time to make it where
it does not exist) is compared with that of the whole tensor, over the link as it was measured last.
Pieces that both versions share cost nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy

from ringcoll import _core
from ringcoll.errors import Error, InvalidArgument
from ringcoll.weights import agents, slices
from ringcoll.weights.arrays import Target, itemsize
from ringcoll.weights.manifest import Manifest, Piece
from ringcoll.weights.reading import Reader, Want
from ringcoll.weights.session import Session
from ringcoll.weights.slices import Slice

_COMPARE_RATE = 4e9  # bytes a second of each of the two tensors that are compared
_APPLY_RATE = 4e9
_FIRST_RATIO = 0.05  # bytes of a delta for each byte of a tensor of which nothing is known
_ASK_S = 30.0
# A delta has one holder. If it takes longer than this, and longer than expected by this factor, the
# holder is given up, and the tensor is read as a whole from all that have it.
_PATIENCE_S = 2.0
_PATIENCE = 8
_MOST_WORTH = 0.5  # holders make no delta that is longer than this part of the tensor


class Goal(NamedTuple):
    """A slice of a tensor that is to get the values of a version."""

    name: str
    place: Slice
    target: Target


class _Patch(NamedTuple):
    """A piece that changes in place: where in the target, by what, and what comes out."""

    goal: Goal
    pid: str
    piece: Piece
    start: int
    delta: numpy.ndarray


class _Fresh(NamedTuple):
    """A tensor that was read as a whole, to its target or beside it."""

    goal: Goal
    data: numpy.ndarray


class _Candidate(NamedTuple):
    """A piece for which there may be a delta."""

    goal: Goal
    pid: str
    before: str
    piece: Piece
    start: int
    holder: str
    distance: int


class Ratios:
    """How long deltas were lately, by name of the tensor."""

    def __init__(self) -> None:
        self._ratios: dict[str, float] = {}

    def get(self, name: str) -> float:
        return self._ratios.get(name, _FIRST_RATIO)

    def note(self, name: str, ratio: float) -> None:
        if len(self._ratios) > 100_000:
            self._ratios.clear()
        self._ratios[name] = ratio


class Update:
    """A new version, ready to be brought to the program's tensors by :meth:`apply`.

    Everything has been read already: deltas, and whole tensors where those were cheaper. The
    program's tensors keep the values of the earlier version until then. One thread at a time uses
    an update.
    """

    def __init__(
        self,
        reader: Reader,
        manifest: Manifest,
        patches: Sequence[_Patch],
        fresh: Sequence[_Fresh],
        finish: Callable[[], None],
        result: Callable[[], Any],
        timeout: float,
    ) -> None:
        self.version = manifest.number
        self._result = result
        self._reader, self._manifest = reader, manifest
        self._patches, self._fresh = patches, fresh
        self._finish: Callable[[], None] | None = finish
        self._timeout = timeout

    @property
    def metadata(self) -> Any:
        """The metadata of the version's commit."""
        return self._manifest.metadata

    @property
    def bytes(self) -> int:
        """Bytes that were read."""
        deltas = sum(patch.delta.nbytes for patch in self._patches)
        return deltas + sum(each.data.nbytes for each in self._fresh)

    @property
    def deltas(self) -> int:
        """The number of pieces that change by a delta."""
        return len(self._patches)

    def apply(self) -> Any:
        """Changes the program's tensors, and verifies them. Returns what they are in: ``out`` of
        :meth:`Store.prepare`. A tensor that did not have the values of the earlier version is read
        as a whole. Raises what reading raises, and InvalidArgument the second time."""
        if self._finish is None:
            raise InvalidArgument("the update has been applied or closed already")
        try:
            for each in self._fresh:
                if each.data is not each.goal.target.data:
                    numpy.copyto(each.goal.target.data, each.data)
            for patch in self._patches:
                self._patch(patch)
            for goal in {id(g.target): g for g in self._goals()}.values():
                goal.target.finish()
            return self._result()
        finally:
            self.close()

    def close(self) -> None:
        """Gives up the update, and the leases that it holds. Closing again does nothing."""
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()

    def __enter__(self) -> Update:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _goals(self) -> list[Goal]:
        return [each.goal for each in self._fresh] + [patch.goal for patch in self._patches]

    def _patch(self, patch: _Patch) -> None:
        data = patch.goal.target.data[patch.start : patch.start + patch.piece.size]
        dtype = self._manifest.tensor(patch.goal.name).dtype
        try:
            _core.delta_apply(data.view(_word(dtype)), patch.delta)
            if _core.checksum(data) == patch.piece.checksum:
                return
        except InvalidArgument:
            pass  # the delta was overwritten, or it is for other values
        want = Want(patch.goal.name, patch.piece.place, data)
        self._reader.read(self._manifest, [want], True, self._timeout)


class Preparer:
    """Prepares updates for one store."""

    def __init__(self, reader: Reader, session: Session) -> None:
        self._reader, self._session = reader, session
        self._ratios = Ratios()

    def prepare(
        self,
        manifest: Manifest,
        before: Manifest | None,
        goals: Sequence[Goal],
        leased: bool,
        finish: Callable[[], None],
        result: Callable[[], Any],
        timeout: float,
        in_place: bool,
    ) -> tuple[Update, bool]:
        """Reads what the goals need. Returns the update, and whether all that was read as a whole
        was verified. ``before`` is the version whose values the targets have, or None. With
        ``in_place``, what is read as a whole goes straight to the targets."""
        deadline = time.monotonic() + timeout
        fresh: list[_Fresh] = []
        candidates: list[_Candidate] = []
        for goal in goals:
            found = self._candidates(manifest, before, goal) if leased else None
            if found is None:
                fresh.append(_fresh(goal, in_place))
            else:
                candidates += found
        patches, whole = self._fetch_deltas(candidates, deadline)
        fresh += [_fresh(goal, in_place) for goal in whole]
        names = {id(each.goal) for each in fresh}
        patches = [patch for patch in patches if id(patch.goal) not in names]
        wants = [Want(each.goal.name, each.goal.place, each.data) for each in fresh]
        left = max(0.1, deadline - time.monotonic())
        exact = self._reader.read(manifest, wants, leased, left)
        return Update(self._reader, manifest, patches, fresh, finish, result, timeout), exact

    def _candidates(
        self, manifest: Manifest, before: Manifest | None, goal: Goal
    ) -> list[_Candidate] | None:
        """The pieces of a tensor that have changed. None if it has to be read as a whole."""
        tensor = manifest.tensor(goal.name)
        old = before.tensors.get(goal.name) if before is not None else None
        if before is None or old is None or (old.dtype, old.shape) != (tensor.dtype, tensor.shape):
            return None
        by_place = {before.piece(pid).place: pid for pid in old.pieces}
        found = []
        for pid in tensor.pieces:
            piece = manifest.piece(pid)
            part = slices.intersect(goal.place, piece.place)
            earlier = by_place.get(piece.place)
            if part is None or earlier == pid:
                continue
            candidate = self._candidate(manifest, before, goal, pid, earlier, part)
            if candidate is None:
                return None
            found.append(candidate)
        return found

    def _candidate(
        self,
        manifest: Manifest,
        before: Manifest,
        goal: Goal,
        pid: str,
        earlier: str | None,
        part: Slice,
    ) -> _Candidate | None:
        piece = manifest.piece(pid)
        if earlier is None or part != piece.place:
            return None
        width = itemsize(manifest.tensor(goal.name).dtype)
        runs = slices.runs(part, piece.place, goal.place, width)
        both = manifest.holders_of(pid)
        both = {h: d for h, d in both.items() if h in before.holders_of(earlier)}
        if runs.length != piece.size or not both:
            return None
        holder = min(both, key=lambda h: (both[h], h))
        start = int(runs.target[0])
        return _Candidate(goal, pid, earlier, piece, start, holder, both[holder])

    def _fetch_deltas(
        self, candidates: Sequence[_Candidate], deadline: float
    ) -> tuple[list[_Patch], list[Goal]]:
        """Asks holders for deltas and reads those that are cheap. Returns also the goals of which
        some piece has none."""
        groups: dict[tuple[str, bool], list[_Candidate]] = {}
        for each in candidates:
            groups.setdefault((each.holder, self._is_worth_making(each)), []).append(each)
        patches: list[_Patch] = []
        whole: dict[int, Goal] = {}
        copies: list[tuple[numpy.ndarray, list[agents.Source]]] = []
        expected = 0.0
        for (holder, make), group in groups.items():
            for each, source in zip(group, self._ask(holder, make, group, deadline), strict=True):
                if source is None:
                    whole[id(each.goal)] = each.goal
                    continue
                (handle, offset), length = source
                delta = numpy.empty(length, numpy.uint8)
                copies.append((delta, [(handle, offset, each.distance)]))
                expected += length / self._reader.rates.rate(each.distance)
                patches.append(_Patch(each.goal, each.pid, each.piece, each.start, delta))
        try:
            left = max(0.1, deadline - time.monotonic())
            self._reader.fetch(copies, min(left, _PATIENCE_S + _PATIENCE * expected))
        except Error:  # a holder was lost, does not answer, or has dropped a delta
            return [], list({id(each.goal): each.goal for each in candidates}.values())
        return patches, list(whole.values())

    def _is_worth_making(self, each: _Candidate) -> bool:
        size, rate = each.piece.size, self._reader.rates.rate(each.distance)
        made = size * self._ratios.get(each.goal.name) / rate + 2 * size / _COMPARE_RATE
        return made + size / _APPLY_RATE < size / rate

    def _is_worth_reading(self, each: _Candidate, length: int) -> bool:
        rate = self._reader.rates.rate(each.distance)
        return length / rate + length / _APPLY_RATE < each.piece.size / rate

    def _ask(
        self, holder: str, make: bool, group: Sequence[_Candidate], deadline: float
    ) -> list[tuple[tuple[bytes, int], int] | None]:
        """The places and lengths of deltas, as far as they exist and are cheap."""
        pairs = [[each.before, each.pid, _width(each)] for each in group]
        timeout = min(_ASK_S, max(0.1, deadline - time.monotonic()))
        answer = self._session.ask(holder, {"q": "delta", "pairs": pairs, "make": make}, timeout)
        if answer is None:
            return [None] * len(group)
        found: list[tuple[tuple[bytes, int], int] | None] = []
        for each, place in zip(group, answer["deltas"], strict=True):
            if place is not None:
                self._ratios.note(each.goal.name, place[2] / max(1, each.piece.size))
            elif make:
                self._ratios.note(each.goal.name, _MOST_WORTH)
            if place is None or not self._is_worth_reading(each, place[2]):
                found.append(None)
                continue
            handle = agents.decode(answer["regions"][str(place[0])])
            found.append(((handle, place[1]), place[2]))
        return found


def _fresh(goal: Goal, in_place: bool) -> _Fresh:
    data = goal.target.data
    return _Fresh(goal, data if in_place else numpy.empty(data.nbytes, numpy.uint8))


def _width(each: _Candidate) -> int:
    count = slices.size_of(each.piece.place.shape)
    return math.gcd(each.piece.size // count, 8)


def _word(dtype: str) -> numpy.dtype[Any]:
    """The unsigned integers as which elements are compared."""
    return numpy.dtype(f"u{math.gcd(itemsize(dtype), 8)}")
