"""What the drivers of one-sided copies share: owners have memory, and a user copies from and to it.

A job has the ranks 0 to N-1 as owners, most often one, and rank N as the user. Each driver is
started as `driver.py SOCKET DIRECTORY RANKS MOST_BYTES [word ...]`, once for each rank, and finds
its rank in PERF_RANKS. Commands of the harness, which come to all ranks:

    use WAY                  read or write; the drivers may have more ways, named read-...
    prepare BYTES            fills the source of the way with a pattern, and clears the destination
    run BYTES BATCHES CALLS  the user copies; its times are answered, an owner answers zeros
    verify BYTES             compares the destination with the pattern
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from bench import Harness, times_line

MEETING_S = 60.0
_PATTERN_BYTES = 65_521  # a prime: bytes that are moved by a page or a segment are noticed


class Owner(Protocol):
    memory: Any  # NumPy bytes; None where only the user can tell what is in it

    def close(self) -> None: ...


class User(Protocol):
    """May also have prepare(way, size), which prepares what is not in `local`, and
    fetch(way, size), which puts into `local` what is compared with the pattern."""

    local: Any  # NumPy bytes

    def copy(self, way: str, size: int) -> None: ...

    def close(self) -> None: ...


class Start:
    """The command line, and a folder in which the ranks meet."""

    def __init__(self) -> None:
        path, directory, ranks, most, *self.words = sys.argv[1:]
        self.socket, self.directory = path, Path(directory)
        self.ranks, self.most_bytes = int(ranks), int(most)
        self.rank = int(os.environ["PERF_RANKS"])
        self.owners = self.ranks - 1

    @property
    def is_user(self) -> bool:
        return self.rank == self.owners

    def publish(self, name: str, content: bytes) -> None:
        path = self.directory / name
        path.with_suffix(".new").write_bytes(content)
        path.with_suffix(".new").rename(path)

    def expect(self, name: str) -> bytes:
        end = time.monotonic() + MEETING_S
        while not (self.directory / name).exists():
            if time.monotonic() > end:
                raise TimeoutError(f"no {name} within {MEETING_S:.0f} s")
            time.sleep(0.01)
        return (self.directory / name).read_bytes()

    @property
    def address(self) -> str:
        """Where the other ranks reach this one: the harness names the host's address, if any."""
        return os.environ.get("PERF_ADDRESS", "127.0.0.1")

    def free_port(self) -> int:
        with socket.socket() as probe:
            probe.bind((self.address, 0))
            return int(probe.getsockname()[1])


def memory(size: int) -> Any:
    return np.zeros(size, np.uint8)


def pattern(way: str, size: int) -> Any:
    random = np.random.default_rng(len(way))
    return np.resize(random.integers(1, 256, min(size, _PATTERN_BYTES), np.uint8), size)


class _Rank:
    """Answers the commands."""

    def __init__(self, start: Start, role: Any) -> None:
        self._user, self._role, self._way = start.is_user, role, "read"
        self._memory = role.local if start.is_user else role.memory

    def _has_source(self) -> bool:
        return self._user != self._way.startswith("read")

    def use(self, words: list[str]) -> str:
        self._way = words[0]
        return "using"

    def prepare(self, words: list[str]) -> str:
        size = int(words[0])
        content = pattern(self._way, size) if self._has_source() else 0
        if self._memory is not None:
            self._memory[:size] = content
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
            wrong = np.flatnonzero(self._memory[:size] != pattern(self._way, size))
            if len(wrong):
                raise ValueError(f"{self._way}: {len(wrong)} of {size} bytes are wrong")
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
