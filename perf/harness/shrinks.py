"""What it takes to go on without a rank: jobs that lose one, shrink, and say how long it took."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from .splits import run_driver

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
    return Found(**json.loads(run_driver(driver, case, environment)))
