"""Pure: from times to medians, ratios and verdicts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

OURS = "ringcoll"
PACEMAKER = "pace-maker"
BOUND = "copy bound"

KIB, MIB = 1 << 10, 1 << 20
SIZES = [4, 64, KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB]
SIZES += [MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB]

# A batch shorter than this is mostly the skew of the barrier before it and the clock.
LEAST_BATCH_S = 1e-3
LEAST_BATCHES, MOST_BATCHES = 3, 100


@dataclass(frozen=True)
class Target:
    """peer's time / ringcoll's time is to be at least `ratio`, at sizes in [least, most]; where the
    cores' distance is taken, in these states of it alone, if any are named."""

    peer: str
    ranks: int
    ratio: float
    least: int = 0
    most: int = 1 << 62
    states: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.ratio < 1:
            need = f"at most {1 / self.ratio:.3g} times the time of the {self.peer}"
        else:
            need = f"at least {self.ratio:g} times as fast as {self.peer}"
        first = f" from {format_size(self.least)}" if self.least else ""
        last = f" to {format_size(self.most)}" if self.most < 1 << 62 else ""
        return f"{self.ranks} ranks{first}{last}: {need}"


MPIS = ("Open MPI", "MPICH", "Intel MPI", "oneCCL")
# At most 0.8 of the time of the best peer between two ranks, and 0.9 with more ranks than cores.
TARGETS = [
    Target("gloo", 2, 5),
    *(Target(peer, 2, 1 / 0.8) for peer in MPIS),
    Target(BOUND, 2, 1 / 1.5, least=16 * MIB),
    *(Target(peer, 4, 1 / 0.9) for peer in ("gloo", *MPIS)),
]


def format_size(size: int) -> str:
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def parse_size(text: str) -> int:
    """4, 64KiB, 16M: bytes; a positive multiple of 4."""
    units = {"K": KIB, "KIB": KIB, "M": MIB, "MIB": MIB, "G": 1 << 30, "GIB": 1 << 30, "B": 1}
    digits = text.rstrip("KMGIBkmgib ")
    unit = text[len(digits) :].strip().upper()
    if not digits.isdigit() or (unit and unit not in units):
        raise ValueError(f'"{text}" is not a size such as 4, 64KiB or 16M')
    size = int(digits) * units.get(unit, 1)
    if size <= 0 or size % 4:
        raise ValueError(f'"{text}" is not a positive multiple of 4 bytes')
    return size


def format_seconds(seconds: float) -> str:
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= unit:
            digits = max(0, 2 - int(math.log10(seconds / unit)))
            return f"{seconds / unit:.{digits}f} {name}"
    return f"{seconds * 1e6:.2f} µs"


def batch_seconds(by_rank: list[list[float]], calls: int) -> list[float]:
    """What a call took in each batch, which is as slow as its slowest rank."""
    return [max(batch) / calls for batch in zip(*by_rank, strict=True)]


def plan_visit(expected_s: float, budget_s: float, one_call: bool = False) -> tuple[int, int]:
    """(batches, calls of a batch) that take about the budget at `expected_s` for a call."""
    expected_s = max(expected_s, 1e-9)
    calls = 1 if one_call else max(1, round(LEAST_BATCH_S / expected_s))
    least = LEAST_BATCHES if expected_s < budget_s else 1
    return min(max(round(budget_s / (calls * expected_s)), least), MOST_BATCHES), calls


def ratio(peer: list[float | None], ours: list[float | None]) -> float | None:
    """The median of peer / ours, round by round, over the rounds in which both ran."""
    rounds = [p / o for p, o in zip(peer, ours, strict=False) if p and o]
    return median(rounds) if rounds else None


def middle(rounds: list[float | None]) -> float | None:
    measured = [seconds for seconds in rounds if seconds is not None]
    return median(measured) if measured else None


def best(ways: list[list[float | None]]) -> list[float | None]:
    """Of each round the shortest time that any of the ways took."""
    longest = max(map(len, ways), default=0)
    found: list[float | None] = []
    for turn in range(longest):
        times = [way[turn] for way in ways if turn < len(way)]
        found.append(min((t for t in times if t is not None), default=None))
    return found


@dataclass(frozen=True)
class Verdict:
    target: Target
    misses: list[tuple[int, float]]  # size, ratio
    checked: int

    @property
    def met(self) -> bool | None:
        """None: nothing to judge by."""
        return not self.misses if self.checked else None


def wanted(targets: list[Target], ranks: int, peer: str, size: int) -> float | None:
    """The ratio that a target asks of this cell."""
    fitting = [
        t.ratio for t in targets if (t.ranks, t.peer) == (ranks, peer) and t.least <= size <= t.most
    ]
    return max(fitting, default=None)


def judge(targets: list[Target], ratios: dict[tuple[int, str, int], float]) -> list[Verdict]:
    """`ratios` is keyed by (ranks, peer, size)."""
    verdicts = []
    for target in targets:
        cells = {
            size: value
            for (ranks, peer, size), value in sorted(ratios.items())
            if ranks == target.ranks and peer == target.peer and target.least <= size <= target.most
        }
        misses = [(size, value) for size, value in cells.items() if value < target.ratio]
        verdicts.append(Verdict(target, misses, len(cells)))
    return verdicts
