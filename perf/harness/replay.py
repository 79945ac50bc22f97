"""The same steps, twice: ringcoll's price of them, and SimGrid's replay on the fat tree that the
price was told of."""

from __future__ import annotations

import dataclasses
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

from .build import DRIVERS, BuildError, run

LINK_LATENCY_US = 5.0  # of each of the links on a way: two within a leaf, four between leaves
PORT_BYTES_PER_US = 1250.0  # 10 Gb/s
HOST_LATENCY_US = 0.5
# SimGrid's loopback gives it to each message, however many there are.
HOST_RANK_BYTES_PER_US = 8000.0
# SimGrid is not told what a core needs to combine.
CORE_BYTES_PER_US = 1e9
HOSTS_OF_A_LEAF = 8
FAMILIES = {
    "ring": "flat ring",
    "halving_doubling": "halving",
    "recursive_doubling": "halving",
    "direct/ring": "hierarchy",
    "direct/halving_doubling": "hierarchy",
    "direct/recursive_doubling": "hierarchy",
    "binomial/recursive_doubling": "hierarchy",
}


@dataclasses.dataclass(frozen=True)
class Tree:
    """Hosts on leaves; each leaf has HOSTS_OF_A_LEAF / `oversubscription` links up."""

    hosts: int
    ranks_of_a_host: int
    oversubscription: int

    @property
    def ranks(self) -> int:
        return self.hosts * self.ranks_of_a_host

    @property
    def uplinks(self) -> int:
        return HOSTS_OF_A_LEAF // self.oversubscription

    def name(self) -> str:
        return f"{self.hosts} x {self.ranks_of_a_host}, {self.oversubscription}:1"

    def levels(self) -> list[dict[str, Any]]:
        """As ringcoll.simulate.predict() wants them."""

        def level(name: str, ranks: int, latency: float, rank: float, group: float) -> Any:
            return {
                "level": name,
                "ranks": ranks,
                "latency_us": latency,
                "rank_bytes_per_us": rank,
                "group_bytes_per_us": group,
            }

        port, leaf = PORT_BYTES_PER_US, HOSTS_OF_A_LEAF * self.ranks_of_a_host
        levels = [
            level(
                "host",
                self.ranks_of_a_host,
                HOST_LATENCY_US,
                HOST_RANK_BYTES_PER_US,
                HOST_RANK_BYTES_PER_US * self.ranks_of_a_host,
            ),
            level("leaf", leaf, 2 * LINK_LATENCY_US, port, port),
        ]
        if self.hosts > HOSTS_OF_A_LEAF:
            up = port * self.uplinks
            levels.append(level("spine", self.ranks, 4 * LINK_LATENCY_US, port, up))
        return levels

    def platform(self) -> str:
        """SimGrid's description."""
        leaves = max(1, self.hosts // HOSTS_OF_A_LEAF)
        below = min(self.hosts, HOSTS_OF_A_LEAF)
        return f"""<?xml version="1.0"?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <cluster id="tree" prefix="node-" suffix="" radical="0-{self.hosts - 1}" speed="1Gf"
    bw="{PORT_BYTES_PER_US:g}MBps" lat="{LINK_LATENCY_US:g}us" sharing_policy="SPLITDUPLEX"
    loopback_bw="{HOST_RANK_BYTES_PER_US:g}MBps" loopback_lat="{HOST_LATENCY_US:g}us"
    topology="FAT_TREE" topo_parameters="2;{below},{leaves};1,{self.uplinks};1,1"/>
</platform>
"""


def steps_text(ranks: int, rounds: list[list[float]]) -> str:
    """What drivers/simgrid_replay.cc reads, of rounds as predict(messages=True) gives them."""
    lines = [f"{ranks} {len(rounds)}"]
    for flat in rounds:
        lines.append(str(len(flat) // 3))
        for i in range(0, len(flat), 3):
            lines.append(f"{flat[i]:.0f} {flat[i + 1]:.0f} {flat[i + 2]:.12g}")
    return "\n".join(lines) + "\n"


def messages_of(rounds: list[list[float]]) -> int:
    return sum(len(flat) // 3 for flat in rounds)


@dataclasses.dataclass
class Comparison:
    row: str
    tree: Tree
    bytes: int
    pieces: int
    slots: int
    predicted_us: float
    replayed_us: float

    @property
    def ratio(self) -> float:
        """1: they agree; above: ringcoll expects it to take longer than SimGrid."""
        return self.predicted_us / self.replayed_us


def build_driver(directory: Path) -> Path:
    source, program = DRIVERS / "simgrid_replay.cc", directory / "simgrid_replay"
    if program.exists() and program.stat().st_mtime > source.stat().st_mtime:
        return program
    directory.mkdir(parents=True, exist_ok=True)
    command = ["c++", "-std=c++17", "-O2", str(source), "-o", str(program), "-lsimgrid"]
    try:
        run(command, "simgrid_replay")
    except BuildError as error:
        raise BuildError(f"{error}\nSimGrid: apt-get install libsimgrid-dev") from None
    return program


class Replayer:
    """Replays a schedule on a tree; `most_messages` bounds one case and `limit_s` all of them."""

    def __init__(self, program: Path, directory: Path, most_messages: int, limit_s: float) -> None:
        self.program, self.directory = program, directory
        self.most_messages, self.ends = most_messages, time.monotonic() + limit_s
        self.left_out: list[str] = []

    def compare(self, row: str, tree: Tree, sizes: list[int], predict: Any) -> list[Comparison]:
        """One piece of each size, and the pieces that ringcoll would choose. `predict`:
        ringcoll.simulate.predict."""
        what = {"levels": tree.levels(), "sizes": sizes, "combined_bytes_per_us": CORE_BYTES_PER_US}
        try:
            whole = predict(
                **what,
                algorithm=row,
                messages=True,
                slots=1,
                arena_bytes=1 << 40,
                segment_bytes=1 << 36,
            )
        except ValueError as error:
            self.left_out.append(f"{row} on {tree.name()}: {error}")
            return []
        pieces = predict(**what)
        cases = []
        for prediction in (whole, pieces):
            for line in prediction["sizes"]:
                priced = next((p for p in line["rows"] if p["name"] == row), None)
                if priced is None or priced["microseconds"] is None:
                    continue
                if prediction is pieces and priced["pieces"] == 1:
                    continue  # replayed already
                cases.append(
                    Comparison(
                        row,
                        tree,
                        line["bytes"],
                        priced["pieces"],
                        prediction["slots"],
                        priced["microseconds"],
                        0,
                    )
                )
        return self._replay(cases, whole["rounds"], tree)

    def _replay(
        self, cases: list[Comparison], rounds: list[list[float]], tree: Tree
    ) -> list[Comparison]:
        platform, steps = self.directory / "platform.xml", self.directory / "steps.txt"
        platform.write_text(tree.platform())
        steps.write_text(steps_text(tree.ranks, rounds))
        done = []
        for case in cases:
            messages = messages_of(rounds) * case.pieces
            if messages > self.most_messages or time.monotonic() > self.ends:
                self.left_out.append(
                    f"{case.row} on {tree.name()}, {case.bytes} bytes in {case.pieces} pieces: "
                    f"{messages} messages"
                )
                continue
            line = f"{case.bytes} {case.pieces} {case.slots} {tree.ranks_of_a_host}\n"
            replayed = subprocess.run(
                [str(self.program), str(platform), str(steps)],
                input=line,
                capture_output=True,
                text=True,
                check=False,
            )
            if replayed.returncode != 0:
                raise BuildError(f"simgrid_replay: {replayed.stderr.strip()[-500:]}")
            done.append(dataclasses.replace(case, replayed_us=float(replayed.stdout) * 1e6))
        return done


def summary(comparisons: list[Comparison]) -> list[dict[str, Any]]:
    """For each family, tree's uplinks, and one piece or several: median and worst ratio."""
    groups: dict[tuple[str, int, bool], list[Comparison]] = {}
    for one in comparisons:
        key = (FAMILIES[one.row], one.tree.oversubscription, one.pieces > 1)
        groups.setdefault(key, []).append(one)
    lines = []
    for (family, oversubscription, pipelined), members in sorted(groups.items()):
        worst = max(members, key=lambda one: max(one.ratio, 1 / one.ratio))
        lines.append(
            {
                "family": family,
                "uplinks": f"{oversubscription}:1",
                "pieces": "several" if pipelined else "one",
                "cases": len(members),
                "median": statistics.median(one.ratio for one in members),
                "worst": worst.ratio,
                "worst case": f"{worst.row}, {worst.tree.name()}, {worst.bytes} bytes",
            }
        )
    return lines
