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

    @staticmethod
    def least(usages: Iterable[Usage]) -> Usage:
        """The least of each kind."""
        return Usage(*map(min, zip(*map(astuple, usages), strict=True)))

    def growth(
        self, before: Usage, most_kib: int = 0, most_descriptors: int = 0, most_threads: int = 0
    ) -> str:
        """What has grown by more than that since `before`, in words; empty if nothing has."""
        grown = []
        for name, now, then, most in (
            ("private memory (KiB)", self.anon_kib, before.anon_kib, most_kib),
            ("shared memory (KiB)", self.shmem_kib, before.shmem_kib, most_kib),
            ("descriptors", self.descriptors, before.descriptors, most_descriptors),
            ("threads", self.threads, before.threads, most_threads),
        ):
            if now > then + most:
                grown.append(f"{name} from {then} to {now}, at most {most} more are allowed")
        return "; ".join(grown)


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
        left = now.growth(before, most_descriptors=_OF_THE_PROCESS)
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
