"""A reader's view of one version: its tensors, and where their pieces lie."""

from __future__ import annotations

import copy
from collections.abc import Set
from typing import Any, NamedTuple

from ringcoll.errors import PeerLost
from ringcoll.weights import agents, queries
from ringcoll.weights.catalog import Json
from ringcoll.weights.slices import Slice


class Tensor(NamedTuple):
    """One tensor of a version."""

    dtype: str
    shape: tuple[int, ...]
    pieces: list[str]


class Piece(NamedTuple):
    """A slice of a tensor in memory: the slice, its bytes, and the checksum of those."""

    place: Slice
    size: int
    checksum: int


class Manifest:
    """One version, as holder or client ``me``, described by ``info``, sees it. Any thread may use
    it. It never changes."""

    def __init__(self, message: Json, me: str, info: Json) -> None:
        version = message["version"]
        self.number: int = version["n"]
        self.uid: str = version["uid"]
        self.revision: int = message["revision"]
        self.metadata: Any = copy.deepcopy(version["metadata"])  # the program's own
        self.time: float = version["time"]
        self.nbytes: int = version["bytes"]
        self.holders: Json = message["holders"]
        self.tensors = {
            name: Tensor(dtype, tuple(shape), pids)
            for name, (dtype, shape, pids) in version["tensors"].items()
        }
        self._pieces: Json = message["pieces"]
        self._copies: Json = message["copies"]
        self._handles = {
            (holder, region): agents.decode(handle)
            for holder, regions in message["regions"].items()
            for region, handle in regions.items()
        }
        self._distances = {
            holder: agents.distance(info, me, there, holder)
            for holder, there in self.holders.items()
        }
        self._sources: dict[str, list[tuple[str, agents.Source]]] = {}

    def tensor(self, name: str) -> Tensor:
        """Raises InvalidArgument for an unknown name."""
        if name not in self.tensors:
            raise queries.unknown_name(name, list(self.tensors))
        return self.tensors[name]

    def piece(self, pid: str) -> Piece:
        offset, shape, size, checksum = self._pieces[pid]
        return Piece(Slice(tuple(offset), tuple(shape)), size, checksum)

    def sources(self, pid: str, lost: Set[str] = frozenset()) -> list[agents.Source]:
        """Where a piece can be read, the nearest first: at the holders that are not ``lost``, if
        there are any. Raises PeerLost if nowhere."""
        found = self._sources.get(pid)
        if found is None:
            found = [
                (holder, (self._handles[holder, str(region)], offset, self._far(holder)))
                for holder, (region, offset) in self._copies[pid].items()
            ]
            found.sort(key=lambda source: source[1][2])
            self._sources[pid] = found
        if not found:
            raise PeerLost(
                f"no holder of a part of version {self.number} answers: it can be read again when "
                "one comes back"
            )
        alive = [source for holder, source in found if holder not in lost]
        return alive or [source for _, source in found]

    def holders_of(self, pid: str) -> dict[str, int]:
        """All holders of a piece, and their distances."""
        return {holder: self._far(holder) for holder in self._copies[pid]}

    def _far(self, holder: str) -> int:
        return self._distances.get(holder, agents.FAR)
