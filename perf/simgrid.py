#!/usr/bin/env python3
"""Holds the prices of `ringcoll simulate` against SimGrid, which replays the same steps.

On fat trees of hosts with 1:1 and 4:1 uplinks, with flows that share links and nothing else: no
protocol, no computation. Writes perf/results/simgrid.json and .md. Needs ringcoll installed, a C++
compiler and libsimgrid-dev.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

from harness.build import CHECKOUT, PERF, BuildError
from harness.replay import FAMILIES, Comparison, Replayer, Tree, build_driver, summary

SIZES = [64 << 10, 1 << 20, 16 << 20]
# (hosts, ranks of each)
SHAPES = [(16, 1), (16, 4), (64, 1), (32, 4), (128, 1), (128, 4), (512, 1), (1024, 4)]
QUICK_SHAPES = [(16, 1)]
MOST_RANKS = {"flat ring": 512, "halving": 4096, "hierarchy": 4096}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10, help="cases are left out after (10)")
    parser.add_argument("--messages", type=int, default=300_000, help="of one case at most")
    parser.add_argument("--quick", action="store_true", help="a few small cases")
    parser.add_argument("--build", type=Path, default=CHECKOUT / "build/perf")
    parser.add_argument("--output", type=Path, default=PERF / "results", help="a directory")
    return parser.parse_args()


def to_markdown(comparisons: list[Comparison], left_out: list[str]) -> str:
    lines = [
        "# The prices of schedules, and SimGrid",
        "",
        f"Predicted time over the time of SimGrid's replay, {len(comparisons)} allreduces of "
        f"{len({c.tree for c in comparisons})} trees. "
        "In one piece, and in as many as ringcoll chooses, where SimGrid can replay them in time.",
        "",
        "| family | uplinks | pieces | cases | median | worst | the worst is |",
        "|---|---|---|---|---|---|---|",
    ]
    for line in summary(comparisons):
        lines.append(
            f"| {line['family']} | {line['uplinks']} | {line['pieces']} | {line['cases']} | "
            f"{line['median']:.2f} | {line['worst']:.2f} | {line['worst case']} |"
        )
    lines += [
        "",
        "| row | hosts x ranks, uplinks | bytes | pieces | predicted us | SimGrid us | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {c.row} | {c.tree.name()} | {c.bytes} | {c.pieces} | {c.predicted_us:.1f} | "
        f"{c.replayed_us:.1f} | {c.ratio:.2f} |"
        for c in comparisons
    ]
    if left_out:
        lines += ["", f"Left out, for their time: {len(left_out)} cases, in the JSON."]
    return "\n".join(lines) + "\n"


def to_json(comparisons: list[Comparison], left_out: list[str]) -> str:
    cases = [
        dataclasses.asdict(c) | {"ratio": c.ratio, "family": FAMILIES[c.row]} for c in comparisons
    ]
    found: dict[str, Any] = {"summary": summary(comparisons), "cases": cases, "left_out": left_out}
    return json.dumps(found, indent=1) + "\n"


def main() -> int:
    # This directory has a horovod.py, which must not be taken for the package.
    sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != PERF]
    from ringcoll.simulate import predict

    arguments = parse_arguments()
    begin = time.monotonic()
    try:
        program = build_driver(arguments.build)
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    replayer = Replayer(program, arguments.build, arguments.messages, arguments.minutes * 60)
    comparisons: list[Comparison] = []
    for hosts, ranks in QUICK_SHAPES if arguments.quick else SHAPES:
        for oversubscription in (1, 4):
            tree = Tree(hosts, ranks, oversubscription)
            for row, family in FAMILIES.items():
                if tree.ranks <= MOST_RANKS[family]:
                    comparisons += replayer.compare(row, tree, SIZES, predict)
            minutes = (time.monotonic() - begin) / 60
            print(f"  {tree.name()}: {minutes:.1f} min", file=sys.stderr)
    text = to_markdown(comparisons, replayer.left_out)
    stem = arguments.output / ("simgrid-quick" if arguments.quick else "simgrid")
    stem.parent.mkdir(parents=True, exist_ok=True)
    stem.with_suffix(".md").write_text(text)
    stem.with_suffix(".json").write_text(to_json(comparisons, replayer.left_out))
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
