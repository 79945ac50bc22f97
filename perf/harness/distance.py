"""How far apart the cores are that ranks run on: what shared memory costs follows it, and the host
of a virtual machine may change it while one measures."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import build

LIMIT_S = 30.0
# Batches of round trips: for one measurement, and between visits, where it takes some milliseconds.
BATCHES, FEW_BATCHES = 101, 9

STATES = ONE_CORE, NEAR, FAR = "one core", "near", "far"
# Round trips of a line, in nanoseconds: two threads of a core take about 40, cores that share a
# last-level cache 90, cores of two such caches 400 and more.
MOST_OF_ONE_CORE_NS, MOST_OF_NEAR_NS = 65.0, 200.0


class Unsettled(Exception):
    """The distance changed while something was measured, or could not be told."""


@dataclass(frozen=True)
class Distance:
    round_trip_ns: float

    @property
    def state(self) -> str:
        if self.round_trip_ns <= MOST_OF_ONE_CORE_NS:
            return ONE_CORE
        return NEAR if self.round_trip_ns <= MOST_OF_NEAR_NS else FAR


def between(before: Distance | None, after: Distance | None) -> str:
    """The state in which something was measured, from the distances before and after it. Raises
    Unsettled."""
    if before is None or after is None:
        raise Unsettled("the distance could not be told")
    if before.state != after.state:
        raise Unsettled(f"it was {before.state} before and {after.state} after")
    return after.state


class Watch:
    """Takes the distance between two cores again and again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def take(self) -> Distance | None:
        found = round_trip_ns(self._directory, FEW_BATCHES)
        return None if found is None else Distance(found)


def taker(directory: Path) -> Callable[[], Distance | None] | None:
    """What takes the distance between visits. None where it cannot be told, or says nothing of
    where the ranks are, as there are more than two CPUs to run on."""
    watch = Watch(directory)
    return watch.take if len(os.sched_getaffinity(0)) == 2 and watch.take() else None


def round_trip_ns(directory: Path, batches: int = BATCHES) -> float | None:
    """Of a cache line between two cores; None where there is one only, or none could be told."""
    program = directory / "core_round_trip"
    build.compile_c("cc", [build.DRIVERS / "core_round_trip.c"], program, [])
    try:
        done = subprocess.run(
            [program, str(batches)], capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    return float(done.stdout) if done.returncode == 0 else None


def describe(directory: Path) -> str:
    found = round_trip_ns(directory)
    return "unknown" if found is None else f"{found:.0f} ns"
