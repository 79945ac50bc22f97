"""What groups cost, used and not: jobs that split ranks off and say what it took."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from .jobs import JobError

LIMIT_S = 120.0


@dataclass(frozen=True)
class Splits:
    """The first `members` of `ranks` are split off so often. All on one host."""

    ranks: int
    members: int
    groups: int
    transport: str

    def __str__(self) -> str:
        return f"{self.groups} groups of {self.members} of {self.ranks} ranks, {self.transport}"

    @property
    def pairs(self) -> int:
        """That a rank has in a group."""
        return self.members - 1


def cases(transports: list[str]) -> list[Splits]:
    return [
        Splits(ranks, members, groups, transport)
        for transport in transports
        for ranks, members, groups in [(2, 2, 20), (8, 8, 20), (8, 4, 64)]
    ]


def quick_cases(transports: list[str]) -> list[Splits]:
    return [Splits(3, 2, 2, transport) for transport in transports]


@dataclass(frozen=True)
class Added:
    """What a process has more than before the first split: that of the rank that has most."""

    descriptors: int
    threads: int
    rss_bytes: int
    pss_bytes: int


@dataclass(frozen=True)
class Found:
    """Of one job. Seconds are of the slowest rank, one for each group. Added: by the first split,
    by all of them, when each group was used, when each had an asynchronous call, and when all had
    been destroyed."""

    split_s: list[float]
    use_s: list[float]
    first: Added
    split: Added
    used: Added
    started: Added
    ended: Added

    @classmethod
    def parse(cls, text: str) -> Found:
        said: dict[str, Any] = json.loads(text)
        added = {moment: Added(**figures) for moment, figures in said["added"].items()}
        return cls(said["split_s"], said["use_s"], **added)


def split_s(found: Found) -> float:
    """Of a group of the job."""
    return median(found.split_s)


def use_s(found: Found) -> float:
    """Of the first use of a group."""
    return median(found.use_s)


def unused_bytes(found: Found) -> float:
    """Of a group that nobody has used: of the first, or on the average, whichever is more."""
    return max(found.first.rss_bytes, found.split.rss_bytes / len(found.split_s))


def run_driver(
    driver: Path, case: Any, environment: dict[str, str], arguments: Sequence[int] = ()
) -> str:
    """One job, from its start to its end, and what it prints. `case` has ranks and a transport."""
    with tempfile.TemporaryDirectory(prefix="perf-") as folder:
        words = [driver, case.ranks, f"file://{folder}", *arguments]
        try:
            done = subprocess.run(
                [str(word) for word in words],
                env={**os.environ, **environment, "RINGCOLL_TRANSPORT": case.transport},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise JobError(f"{case}: no end within {LIMIT_S:.0f} s") from None
    if done.returncode:
        tail = " / ".join(done.stderr.strip().splitlines()[-5:])
        raise JobError(f"{case}: ended with {done.returncode}: {tail}")
    return done.stdout


def measure(driver: Path, case: Splits, environment: dict[str, str]) -> Found:
    return Found.parse(run_driver(driver, case, environment, [case.members, case.groups]))
