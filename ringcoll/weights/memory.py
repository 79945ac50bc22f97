"""Memory for pieces: blocks that others may read, used again from version to version."""

from __future__ import annotations

import bisect
import contextlib
import threading
from collections.abc import Sequence
from typing import Any

import numpy

from ringcoll.errors import Error
from ringcoll.weights import agents

_ALIGN = 64

Place = list[int]  # [block, byte offset]


class Pool:
    """Allocates stretches of registered blocks.

    A request of many stretches takes free ones of earlier blocks, and one new block for the rest.
    So the pieces of a version usually lie in one block, which serves the next version once they are
    free. Blocks that are free as a whole are kept as long as they are no more than the largest
    request. Any thread may use a pool.
    """

    def __init__(self, agent: Any) -> None:
        self._agent = agent
        self._lock = threading.Lock()
        self._blocks: dict[int, agents.Block] = {}
        self._free: dict[int, list[tuple[int, int]]] = {}  # block -> sorted (offset, length)
        self._sizes: dict[tuple[int, int], int] = {}  # stretches in use: place -> length
        self._next = 0
        self._largest = 0

    @property
    def used(self) -> int:
        """Bytes in use."""
        with self._lock:
            return sum(self._sizes.values())

    @property
    def total(self) -> int:
        """Bytes of all blocks."""
        with self._lock:
            return sum(block.array.nbytes for block in self._blocks.values())

    def allocate(self, sizes: Sequence[int]) -> list[Place]:
        """Places for stretches of these sizes in bytes. If there is no memory, raises MemoryError
        or TransportError, and takes none."""
        rounded = [_round(size) for size in sizes]
        with self._lock:
            self._largest = max(self._largest, sum(rounded))
            places = [self._take(size) for size in rounded]
            lacking = sum(size for size, place in zip(rounded, places, strict=True) if not place)
            if lacking:
                try:
                    block = self._add_block(lacking)
                except BaseException:
                    self._give_back([place for place in places if place])
                    raise
                for index, size in enumerate(rounded):
                    if places[index] is None:
                        places[index] = self._take_from(block, 0, size)
        return [place for place in places if place is not None]

    def view(self, place: Sequence[int], size: int) -> numpy.ndarray:
        """The bytes at a place."""
        with self._lock:
            return self._blocks[place[0]].array[place[1] : place[1] + size]

    def handles(self, places: Sequence[Sequence[int]]) -> dict[str, str]:
        """The handles of the blocks of some places."""
        with self._lock:
            return {str(b): self._blocks[b].handle for b in sorted({place[0] for place in places})}

    def free(self, places: Sequence[Sequence[int]]) -> list[agents.Block]:
        """Frees stretches. Returns blocks that are not needed any more: the caller closes them
        (:func:`close`), which may take a while."""
        with self._lock:
            self._give_back(places)
            return self._spare_blocks()

    def close(self) -> None:
        """Closes all blocks."""
        with self._lock:
            blocks, self._blocks = list(self._blocks.values()), {}
            self._free.clear()
            self._sizes.clear()
        close(blocks)

    # All of these are called with the lock.

    def _take(self, size: int) -> Place | None:
        for block, free in self._free.items():
            for index, (_, length) in enumerate(free):
                if length >= size:
                    return self._take_from(block, index, size)
        return None

    def _take_from(self, block: int, index: int, size: int) -> Place:
        offset, length = self._free[block][index]
        if length == size:
            del self._free[block][index]
        else:
            self._free[block][index] = (offset + size, length - size)
        self._sizes[block, offset] = size
        return [block, offset]

    def _add_block(self, size: int) -> int:
        block = agents.allocate(self._agent, size)
        self._next += 1
        self._blocks[self._next] = block
        self._free[self._next] = [(0, size)]
        return self._next

    def _give_back(self, places: Sequence[Sequence[int]]) -> None:
        for block, offset in places:
            length = self._sizes.pop((block, offset), 0)
            if length == 0 or block not in self._free:
                continue
            free = self._free[block]
            at = bisect.bisect(free, (offset, 0))
            if at < len(free) and free[at][0] == offset + length:
                length += free.pop(at)[1]
            if at > 0 and sum(free[at - 1]) == offset:
                offset, before = free[at - 1]
                length += before
                free[at - 1] = (offset, length)
            else:
                free.insert(at, (offset, length))

    def _spare_blocks(self) -> list[agents.Block]:
        """Takes out the blocks that are free as a whole and are more than the largest request."""
        whole = [
            number
            for number, free in self._free.items()
            if free == [(0, self._blocks[number].array.nbytes)]
        ]
        spare, kept = [], 0
        for number in whole:
            kept += self._blocks[number].array.nbytes
            if kept > self._largest:
                spare.append(self._blocks.pop(number))
                del self._free[number]
        return spare


def _round(size: int) -> int:
    return max(_ALIGN, -(-size // _ALIGN) * _ALIGN)


def close(blocks: Sequence[agents.Block]) -> None:
    """Ends the regions of blocks, and waits until nobody copies from them."""
    for block in blocks:
        with contextlib.suppress(Error):  # a stopped process may keep it; its memory stays then
            block.region.close()
