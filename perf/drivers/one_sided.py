"""What the drivers of one-sided copies share: owners have memory, and a user copies from and to it.

A job has the ranks 0 to N-1 as owners, most often one, and rank N as the user. Each driver is
started as `driver.py SOCKET DIRECTORY RANKS MOST_BYTES [word ...]`, once for each rank, and finds
its rank in PERF_RANKS. Commands of the harness, which come to all ranks:

    use WAY                  read or write; read/400 reads 400 pieces of the bytes by one call, as
                             the tensors of a state dict; a driver may have ways named read-...
    prepare BYTES            fills the source of the way with a pattern, and clears the destination
    run BYTES BATCHES CALLS  the user copies; its times are answered, an owner answers zeros
    verify BYTES             compares the destination with the pattern
"""

from __future__ import annotations

import time
from typing import Any, Protocol

import numpy as np
from bench import Harness, times_line
from start import Start as Start

_PATTERN_BYTES = 65_521  # a prime: bytes that are moved by a page or a segment are noticed
_ALIGN = 64  # of pieces, as allocators align tensors


class Owner(Protocol):
    memory: Any  # NumPy bytes; None where only the user can tell what is in it

    def close(self) -> None: ...


class User(Protocol):
    """May also have prepare(way, size), which prepares what is not in `local`, and
    fetch(way, size), which puts into `local` what is compared with the pattern."""

    local: Any  # NumPy bytes

    def copy(self, way: str, size: int) -> None: ...

    def close(self) -> None: ...


def memory(size: int) -> Any:
    return np.zeros(size, np.uint8)


def is_read(way: str) -> bool:
    return way.startswith("read")


def pieces(way: str, size: int) -> list[slice]:
    """What a way copies at a time: all bytes, or the pieces of a way such as read/400."""
    count = int(way.partition("/")[2] or 1)
    ends = [size * n // count // _ALIGN * _ALIGN for n in range(1, count)] + [size]
    return [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]


def fill(memory: Any, way: str) -> None:
    """Writes the pattern of the way. Takes no memory besides, however long it is."""
    unit, rows, rest = _in_rows(memory, way)
    rows[:] = unit
    rest[:] = unit[: len(rest)]


def count_wrong(memory: Any, way: str) -> int:
    """The bytes that differ from the pattern of the way."""
    unit, rows, rest = _in_rows(memory, way)
    wrong = sum(np.count_nonzero(row != unit) for row in rows)
    return int(wrong + np.count_nonzero(rest != unit[: len(rest)]))


def _in_rows(memory: Any, way: str) -> tuple[Any, Any, Any]:
    """What is repeated, the memory in rows of that length, and what is left of it."""
    unit = np.random.default_rng(len(way)).integers(1, 256, _PATTERN_BYTES, np.uint8)
    whole = len(memory) // len(unit) * len(unit)
    return unit, memory[:whole].reshape(-1, len(unit)), memory[whole:]


class _Rank:
    """Answers the commands."""

    def __init__(self, start: Start, role: Any) -> None:
        self._user, self._role, self._way = start.is_user, role, "read"
        self._memory = role.local if start.is_user else role.memory

    def _has_source(self) -> bool:
        return self._user != is_read(self._way)

    def use(self, words: list[str]) -> str:
        self._way = words[0]
        return "using"

    def prepare(self, words: list[str]) -> str:
        size = int(words[0])
        if self._memory is not None and self._has_source():
            fill(self._memory[:size], self._way)
        elif self._memory is not None:
            self._memory[:size] = 0
        if hasattr(self._role, "prepare"):
            self._role.prepare(self._way, size)
        return "prepared"

    def verify(self, words: list[str]) -> str:
        size = int(words[0])
        if hasattr(self._role, "fetch"):
            self._role.fetch(self._way, size)
        elif self._has_source():
            return "verified"
        if self._memory is not None:
            wrong = count_wrong(self._memory[:size], self._way)
            if wrong:
                raise ValueError(f"{self._way}: {wrong} of {size} bytes are wrong")
        return "verified"

    def run(self, words: list[str]) -> str:
        size, batches, calls = map(int, words)
        if not self._user:
            return times_line([0.0] * batches)
        copy, way, times = self._role.copy, self._way, []
        for _ in range(batches):
            begin = time.perf_counter()
            for _ in range(calls):
                copy(way, size)
            times.append(time.perf_counter() - begin)
        return times_line(times)


def serve(start: Start, role: Owner | User) -> None:
    """Until the harness says quit."""
    rank = _Rank(start, role)
    harness = Harness(start.socket, start.rank)
    commands = {"use": rank.use, "prepare": rank.prepare, "run": rank.run, "verify": rank.verify}
    try:
        harness.serve(commands)
    finally:
        role.close()
