"""How far apart the cores are that ranks run on: what shared memory costs follows it, and the host
of a virtual machine may change it while one measures."""

from __future__ import annotations

import subprocess
from pathlib import Path

from . import build

LIMIT_S = 30.0


def round_trip_ns(directory: Path) -> float | None:
    """Of a cache line between two cores; None where there is one only, or none could be told."""
    program = directory / "core_round_trip"
    build.compile_c("cc", [build.DRIVERS / "core_round_trip.c"], program, [])
    try:
        done = subprocess.run(
            [program], capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    return float(done.stdout) if done.returncode == 0 else None


def describe(directory: Path) -> str:
    found = round_trip_ns(directory)
    return "unknown" if found is None else f"{found:.0f} ns"
