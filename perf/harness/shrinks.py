"""What it takes to go on without a rank: jobs that lose one, shrink, and say how long it took."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .jobs import JobError

LIMIT_S = 120.0
# What a library's header has to declare.
NEEDED = "ringcoll_comm_shrink"


@dataclass(frozen=True)
class Shrinks:
    """The last of `ranks` is killed. All on one host."""

    ranks: int
    transport: str

    def __str__(self) -> str:
        return f"{self.ranks} ranks without one, {self.transport}"


def cases(transports: list[str]) -> list[Shrinks]:
    return [Shrinks(8, transport) for transport in transports]


def quick_cases(transports: list[str]) -> list[Shrinks]:
    return [Shrinks(3, transport) for transport in transports]


@dataclass(frozen=True)
class Found:
    """Of one job, each figure of the rank that has most: from the loss to its error, from that to
    the end of its shrink, and from the loss to the end of the first call afterwards."""

    noticed_s: float
    shrink_s: float
    whole_s: float


def measure(driver: Path, case: Shrinks, environment: dict[str, str]) -> Found:
    """One job, from its start to its end."""
    with tempfile.TemporaryDirectory(prefix="perf-") as folder:
        words = [driver, case.ranks, f"file://{folder}"]
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
    return Found(**json.loads(done.stdout))
