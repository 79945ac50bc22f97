"""What was measured of several peers in one place, by one way, and what follows from that."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from . import figures, report
from .figures import OURS
from .places import wire_s


@dataclass
class Measured:
    """Of all sizes and peers. `results` has the number of ranks in its keys."""

    rate: str  # of each host's link; ONE_HOST
    way: str
    results: report.Results
    ranks: int = 2

    @property
    def sizes(self) -> list[int]:
        return sorted({size for _, _, size in self.results.rounds})

    def has(self, peer: str) -> bool:
        return any(key[1] == peer for key in self.results.rounds)

    def seconds(self, peer: str, size: int) -> float | None:
        return figures.middle(self.results.rounds.get((self.ranks, peer, size), []))

    def ratio(self, peer: str, size: int, to: str = OURS) -> float | None:
        """The median over rounds of the peer's time over that of `to`."""
        rounds_of = self.results.rounds
        key, other = (self.ranks, peer, size), (self.ranks, to, size)
        return figures.ratio(rounds_of.get(key, []), rounds_of.get(other, []))

    def part_of_wire(self, peer: str, size: int) -> float | None:
        seconds = self.seconds(peer, size)
        return wire_s(self.rate, self.link_bytes(size)) / seconds if seconds and self.rate else None

    def link_bytes(self, size: int) -> int:
        """What passes over the link that has most to do, in one direction."""
        return size

    def processor_s_a_gib(self, peer: str, size: int) -> list[float] | None:
        """The median over visits, of each rank."""
        visits = self.results.visits.get((self.ranks, peer, size), [])
        gib = [v.calls * len(v.calls_s) * size / 2**30 for v in visits]
        by_visit = [
            [spent / copied for spent in visit.processor_of_rank_s]
            for visit, copied in zip(visits, gib, strict=True)
        ]
        return [median(of_rank) for of_rank in zip(*by_visit, strict=True)] or None
