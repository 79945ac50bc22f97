"""Which step each rank is in, in a file that all of them have mapped."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

_WORD = struct.Struct("q")


class Stages:
    def __init__(self, path: Path, size: int) -> None:
        self._size = size
        with path.open("a+b") as file:
            file.truncate(size * _WORD.size)
            self._memory = mmap.mmap(file.fileno(), size * _WORD.size)

    def put(self, rank: int, at: int) -> None:
        _WORD.pack_into(self._memory, rank * _WORD.size, at + 1)

    def all(self) -> list[int]:
        """-1 for a rank that is in none yet."""
        return [_WORD.unpack_from(self._memory, r * _WORD.size)[0] - 1 for r in range(self._size)]

    def close(self) -> None:
        self._memory.close()
