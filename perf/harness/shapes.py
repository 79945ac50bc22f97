"""Pure: what is measured on emulated hosts. Shapes, cases and the bound of each."""

from __future__ import annotations

import re
from dataclasses import dataclass

from support import hosts

UNSHAPED = "unshaped"
SLOWER_UPLINK = 10


@dataclass(frozen=True)
class Shape:
    """How many ranks each host has. Ranks are numbered host by host."""

    ranks: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> Shape:
        """2x4: two hosts of four ranks each; 1+2+4: three hosts."""
        if match := re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text):
            return cls((int(match[2]),) * int(match[1]))
        if re.fullmatch(r"[1-9]\d*(\+[1-9]\d*)+", text):
            return cls(tuple(int(count) for count in text.split("+")))
        raise ValueError(f'"{text}" is not a shape such as 2x4 or 1+2+4')

    def __str__(self) -> str:
        if len(set(self.ranks)) == 1:
            return f"{len(self.ranks)} × {self.ranks[0]}"
        return " + ".join(map(str, self.ranks))

    @property
    def hosts(self) -> int:
        return len(self.ranks)

    @property
    def size(self) -> int:
        return sum(self.ranks)

    def ranks_of(self, host: int) -> list[int]:
        first = sum(self.ranks[:host])
        return list(range(first, first + self.ranks[host]))


@dataclass(frozen=True)
class Case:
    """One table: a shape, links of one rate ("1gbit"; or unshaped), and the sizes to measure.

    With `racks`, hosts are in two racks in turn (so that the order of their names is the worst
    there is), and the link between the racks has a tenth of the hosts' rate. With several
    `networks`, each host has a link of that rate in each."""

    shape: Shape
    rate: str
    sizes: tuple[int, ...]
    racks: bool = False
    average: bool = False
    networks: int = 1

    def __str__(self) -> str:
        links = UNSHAPED if self.rate == UNSHAPED else self.rate.replace("gbit", " Gb/s")
        what = ", two racks" if self.racks else ", average" if self.average else ""
        several = f", {self.networks} networks" if self.networks > 1 else ""
        return f"{self.shape} ranks, {links}{what}{several}"

    @property
    def ranks_of_levels(self) -> list[int] | None:
        """Of each group of ranks, from the hosts up; None where groups differ."""
        shape = self.shape
        if len(set(shape.ranks)) > 1 or (self.racks and shape.hosts % 2):
            return None
        levels = [shape.ranks[0], *([shape.size // 2] if self.racks else []), shape.size]
        return [ranks for ranks, below in zip(levels, [0, *levels], strict=False) if ranks != below]

    @property
    def is_plain(self) -> bool:
        return not self.racks and self.networks == 1

    @property
    def rack_of_host(self) -> tuple[int, ...]:
        return tuple(host % 2 for host in range(self.shape.hosts)) if self.racks else ()

    @property
    def uplink(self) -> str:
        """In tc's words; "" if there is none, or no rate."""
        bits = bits_per_second(self.rate)
        return f"{round(bits / SLOWER_UPLINK / 1e6)}mbit" if self.racks and bits else ""

    def bound_s(self, size: int) -> float | None:
        """No allreduce takes less, but for what a shaper's bucket lets pass (256 KB after a pause):
        2n(H-1)/H bytes pass each host's links in each direction, and between two racks n."""
        bits = self.networks * bits_per_second(self.rate)
        if not bits:
            return None
        hosts = self.shape.hosts
        seconds = 2 * size * (hosts - 1) / hosts * 8 / bits
        return max(seconds, size * 8 * SLOWER_UPLINK / bits) if self.racks else seconds


def bits_per_second(rate: str) -> float:
    """Of tc's words; 0: unshaped."""
    if rate == UNSHAPED:
        return 0.0
    try:
        return hosts.bits_per_second(rate)
    except hosts.HostsError as error:
        raise ValueError(f"{error}, and not {UNSHAPED}") from None
