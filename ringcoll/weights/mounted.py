"""A store as the FUSE file system sees it (source.py)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy

from ringcoll.errors import Gone, PeerLost
from ringcoll.weights import archive, formats
from ringcoll.weights.arrays import itemsize
from ringcoll.weights.leases import Lease
from ringcoll.weights.manifest import Manifest
from ringcoll.weights.reading import Reader, Want
from ringcoll.weights.slices import Slice
from ringcoll.weights.source import StagedTensor, VersionInfo
from ringcoll.weights.store import Store

_OPEN_S = 5.0  # of a lease that read() has to open by itself


class StoreSource:
    """The source of a mounted store. Any thread may use it. ``close`` ends the store."""

    def __init__(self, store: Store, close: Callable[[], None]) -> None:
        self._store = store
        self.close = close
        self._reader = Reader(store._agent, store._session.lost)
        self._leases: dict[int, Lease] = {}  # the newest of each version

    def versions(self, timeout: float) -> Sequence[VersionInfo]:
        kept = self._store.versions(timeout)
        return [VersionInfo(v.number, v.bytes, v.time) for v in kept if not v.unreadable]

    def manifest(self, version: int, timeout: float) -> formats.Manifest:
        with self._store._leased(version, timeout) as (manifest, _):
            return archive.describe(manifest)

    def lease(self, version: int, timeout: float) -> Lease:
        lease = self._store.lease(version, timeout)
        self._leases[version] = lease
        return lease

    def read(self, version: int, pieces: Sequence[formats.Piece], timeout: float) -> None:
        lease = self._leases.get(version)
        if lease is None:
            raise Gone(f"version {version} is not leased")
        wants: list[Want] = []
        trims: list[tuple[memoryview, numpy.ndarray]] = []
        for piece in pieces:
            tensor = lease.manifest.tensor(piece.name)
            width = itemsize(tensor.dtype)
            first, end = piece.offset // width, -(-(piece.offset + len(piece.out)) // width)
            out = numpy.frombuffer(piece.out, numpy.uint8)
            if (end - first) * width != len(piece.out):  # begins or ends within an element
                out = numpy.empty((end - first) * width, numpy.uint8)
                trims.append((piece.out, out[piece.offset - first * width :]))
            begin = 0
            for part in rectangles(tensor.shape, first, end):
                size = math.prod(part.shape) * width
                wants.append(Want(piece.name, part, out[begin : begin + size]))
                begin += size
        self._read(lease, wants, timeout)
        for place, data in trims:
            place[:] = data[: len(place)].data

    def _read(self, lease: Lease, wants: Sequence[Want], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        try:
            self._reader.read(lease.manifest, wants, True, timeout)
        except (PeerLost, Gone):

            def attempt(manifest: Manifest, name: str | None, left: float) -> tuple[None, bool]:
                lease.manifest = manifest  # its copies may be elsewhere since the lease was opened
                return None, self._reader.read(manifest, wants, name is not None, left)

            self._store._leases.use(lease.version, attempt, deadline - time.monotonic())

    def commit(
        self, tensors: Sequence[StagedTensor], metadata: Mapping[str, Any], timeout: float
    ) -> int:
        return archive.commit(self._store, tensors, metadata, timeout)


def rectangles(shape: tuple[int, ...], first: int, end: int) -> Iterator[Slice]:
    """The elements ``first`` to ``end`` of a tensor, counted row by row, as slices in this order:
    the rest of a row, whole rows, and the beginning of a row; the same within rows."""
    if not shape:
        yield Slice((), ())
        return
    row = math.prod(shape[1:])
    if len(shape) == 1 or row == 0:
        yield Slice((first, *[0] * (len(shape) - 1)), (end - first, *shape[1:]))
        return
    while first < end:
        number, begin = divmod(first, row)
        rows = (end - first) // row if begin == 0 else 0
        if rows > 0:
            yield Slice((number, *[0] * (len(shape) - 1)), (rows, *shape[1:]))
            first += rows * row
            continue
        stop = min(row, begin + end - first)
        for part in rectangles(shape[1:], begin, stop):
            yield Slice((number, *part.offset), (1, *part.shape))
        first += stop - begin
