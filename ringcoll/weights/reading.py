"""Reads slices of tensors out of the memory of their holders.

What is read of a piece as a whole is verified by the piece's checksum. A part of a piece cannot be
verified, so the caller has to know afterwards that its lease was held all the time. Without a lease
pieces are always read as a whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence, Set
from typing import Any, NamedTuple

import numpy

from ringcoll import _core
from ringcoll.errors import Error, TransportError
from ringcoll.weights import agents, slices
from ringcoll.weights.arrays import itemsize
from ringcoll.weights.manifest import Manifest, Piece
from ringcoll.weights.slices import Slice

_MOST_RUNS = 64  # more runs than these are read one by one only if they are long
_LONG_RUN = 8192
_LEAST_RATED = 4 << 20  # bytes of a transfer that says something of a link's rate


class Want(NamedTuple):
    """A slice of a tensor, and the contiguous bytes that it goes to."""

    name: str
    place: Slice
    out: numpy.ndarray


class _Check(NamedTuple):
    """A piece that was read as a whole to ``data``."""

    name: str
    pid: str
    piece: Piece
    data: numpy.ndarray


class Rates:
    """How fast bytes came lately, by distance, in bytes a second."""

    def __init__(self) -> None:
        self._rates = {
            agents.SAME_PROCESS: 8e9,
            agents.SAME_HOST: 4e9,
            agents.SAME_LEAF: 1.25e9,
            agents.FAR: 1.25e8,
        }

    def rate(self, distance: int) -> float:
        return self._rates[distance]

    def note(self, distance: int, size: int, seconds: float) -> None:
        """Takes a transfer into account, all of whose bytes came from one distance."""
        if size >= _LEAST_RATED and seconds > 0:
            self._rates[distance] += 0.5 * (size / seconds - self._rates[distance])


class Reader:
    """Reads for one store. Any thread may use it. ``lost`` returns the holders that do not answer
    now: they are read from only if there are no others."""

    def __init__(self, agent: Any, lost: Callable[[], Set[str]]) -> None:
        self._agent = agent
        self._lost = lost
        self.rates = Rates()
        self.read_bytes: dict[int, int] = {}  # by distance

    def read(self, manifest: Manifest, wants: Sequence[Want], leased: bool, timeout: float) -> bool:
        """Reads all that is wanted. Returns whether all of it was verified.

        Raises PeerLost, Gone, Timeout if no holder of some piece answers, and TransportError if a
        piece differs from its checksum on all holders.
        """
        plan = _Plan(manifest, leased, self._lost())
        for want in wants:
            plan.add(want)
        self._transfer(plan, timeout)
        for check in plan.checks:
            if _core.checksum(check.data) != check.piece.checksum:
                self._repair(manifest, check, timeout)
        for scatter in plan.scatters:
            scatter()
        return plan.exact

    def fetch(
        self, copies: Sequence[tuple[numpy.ndarray, Sequence[agents.Source]]], timeout: float
    ) -> None:
        """Reads bytes as they are."""
        if copies:
            agents.read(self._agent, copies, timeout)

    def _transfer(self, plan: _Plan, timeout: float) -> None:
        if not plan.copies:
            return
        start = time.perf_counter()
        agents.read(self._agent, plan.copies, timeout)
        seconds = time.perf_counter() - start
        for distance, size in plan.sizes.items():
            self.read_bytes[distance] = self.read_bytes.get(distance, 0) + size
        if len(plan.sizes) == 1:
            ((distance, size),) = plan.sizes.items()
            self.rates.note(distance, size, seconds)

    def _repair(self, manifest: Manifest, check: _Check, timeout: float) -> None:
        """Reads a piece that is wrong from each of its holders by itself."""
        for source in manifest.sources(check.pid):
            try:
                agents.read(self._agent, [(check.data, [source])], timeout)
            except Error:
                continue
            if _core.checksum(check.data) == check.piece.checksum:
                return
        raise TransportError(
            f"{check.name!r} of version {manifest.number}: the bytes differ from their checksum on "
            f"all {len(manifest.sources(check.pid))} holders"
        )


class _Plan:
    """The copies for some wants, and what has to be done after them."""

    def __init__(self, manifest: Manifest, leased: bool, lost: Set[str]) -> None:
        self._manifest = manifest
        self._leased = leased
        self._lost = lost
        self.copies: list[tuple[numpy.ndarray, list[agents.Source]]] = []
        self.checks: list[_Check] = []
        self.scatters: list[Callable[[], None]] = []
        self.sizes: dict[int, int] = {}
        self.exact = True

    def add(self, want: Want) -> None:
        tensor = self._manifest.tensor(want.name)
        width = itemsize(tensor.dtype)
        for pid in tensor.pieces:
            piece = self._manifest.piece(pid)
            part = slices.intersect(want.place, piece.place)
            if part is None:
                continue
            if part == piece.place or not self._leased:
                self._add_whole(want, pid, piece, part, width)
            else:
                self._add_part(want, pid, piece, part, width)

    def _add_whole(self, want: Want, pid: str, piece: Piece, part: Slice, width: int) -> None:
        """Reads a piece as a whole, straight to its place if it is contiguous there."""
        found = slices.runs(part, piece.place, want.place, width)
        if part == piece.place and found.length == piece.size:
            start = int(found.target[0])
            data = want.out[start : start + piece.size]
        else:
            data = numpy.empty(piece.size, numpy.uint8)
            first, _ = slices.span(part, piece.place, width)
            self._scatter(want, data[first:], piece.place, part, width)
        self._copy(data, pid, 0)
        self.checks.append(_Check(want.name, pid, piece, data))

    def _add_part(self, want: Want, pid: str, piece: Piece, part: Slice, width: int) -> None:
        """Reads a part of a piece: run by run, or if they are many and short, with all that lies
        between them."""
        self.exact = False
        found = slices.runs(part, piece.place, want.place, width)
        if len(found.source) <= _MOST_RUNS or found.length >= _LONG_RUN:
            for source, target in zip(found.source.tolist(), found.target.tolist(), strict=True):
                self._copy(want.out[target : target + found.length], pid, source)
            return
        first, length = slices.span(part, piece.place, width)
        data = numpy.empty(length, numpy.uint8)
        self._copy(data, pid, first)
        self._scatter(want, data, piece.place, part, width)

    def _copy(self, out: numpy.ndarray, pid: str, offset: int) -> None:
        sources = self._manifest.sources(pid, self._lost)
        if offset:
            sources = [(handle, begin + offset, far) for handle, begin, far in sources]
        self.copies.append((out, sources))
        distance = sources[0][2]
        self.sizes[distance] = self.sizes.get(distance, 0) + out.nbytes

    def _scatter(
        self, want: Want, data: numpy.ndarray, layout: Slice, part: Slice, width: int
    ) -> None:
        """Brings ``part`` from ``data``, which begins with its first element, to its place."""
        dtype = _word(width)
        strides = slices.strides(layout.shape, width)

        def bring() -> None:
            usable = data[: data.nbytes // width * width].view(dtype)
            source = numpy.lib.stride_tricks.as_strided(usable, part.shape, strides)
            target = want.out.view(dtype).reshape(want.place.shape)
            where = tuple(
                slice(begin - origin, begin - origin + length)
                for begin, origin, length in zip(
                    part.offset, want.place.offset, part.shape, strict=True
                )
            )
            target[where] = source

        self.scatters.append(bring)


def _word(width: int) -> numpy.dtype[Any]:
    """A type of this width that NumPy copies as it is."""
    return numpy.dtype(f"u{width}" if width in (1, 2, 4, 8) else f"V{width}")
