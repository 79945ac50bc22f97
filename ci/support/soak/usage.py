"""What a process holds: memory, descriptors, threads."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import time
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from pathlib import Path

# What stands in for descriptors in a child that is forked (csrc/base/fork.cc) stays.
_OF_THE_PROCESS = 1
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8  # malloc.h
_libc = ctypes.CDLL(None)


@dataclass(frozen=True)
class Usage:
    anon_kib: int
    shmem_kib: int
    descriptors: int
    threads: int

    def since(self, before: Usage) -> Usage:
        """What there is more of now."""
        return Usage(
            *(now - then for now, then in zip(astuple(self), astuple(before), strict=True))
        )

    def times(self, ranks: int) -> Usage:
        """Of so many in one process."""
        return Usage(*(each * ranks for each in astuple(self)))

    @staticmethod
    def least(usages: Iterable[Usage]) -> Usage:
        """The least of each kind."""
        return Usage(*map(min, zip(*map(astuple, usages), strict=True)))

    def above(self, most: Usage) -> str:
        """What of it is more than that, in words; empty if nothing is."""
        found = []
        for name, has, may in zip(
            ("KiB of private memory", "KiB of shared memory", "descriptors", "threads"),
            astuple(self),
            astuple(most),
            strict=True,
        ):
            if has > may:
                found.append(f"{has} {name}, at most {may} are allowed")
        return "; ".join(found)


def keep_nothing_back() -> None:
    """Has the allocator of this process give back what is freed, as far as it can."""
    for option, value in ((_M_ARENA_MAX, 1), (_M_MMAP_THRESHOLD, 1 << 16)):
        if not _libc.mallopt(option, value):
            raise OSError(f"mallopt({option}, {value}) failed")


def usage() -> Usage:
    """Of this process, after it has given back what it can."""
    gc.collect()
    _libc.malloc_trim(0)
    found = {"Pss_Anon": 0, "Pss_Shmem": 0}
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in found:
            found[name] = int(value.split()[0])
    return Usage(found["Pss_Anon"], found["Pss_Shmem"], _count("fd"), _count("task"))


def _count(folder: str) -> int:
    return len(list(Path(f"/proc/self/{folder}").iterdir()))


def settles(before: Usage, seconds: float = 3) -> str:
    """What of descriptors and threads is left that was not there before, once some time has
    passed in which threads may end."""
    end = time.monotonic() + seconds
    while True:
        now = Usage(0, 0, _count("fd"), _count("task"))
        left = now.since(before).above(Usage(0, 0, _OF_THE_PROCESS, 0))
        if not left:
            return ""
        if time.monotonic() > end:
            return f"{left}; open are {', '.join(_opened())}"
        time.sleep(0.01)


def _opened() -> list[str]:
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(f"{entry.name}: {entry.readlink()}")
    return found
