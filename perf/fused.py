#!/usr/bin/env python3
"""Times an allreduce of many tensors, on emulated hosts, beside one of a tensor of all their bytes.

What is between them is what packing costs, and so the most that lists of pieces of memory, sent as
they lie, could save. Needs root: hosts are namespaces (ci/support/hosts.py). Writes
perf/results/fused-<machine>.json, .md and .svg. perf/README.md says what is measured and how.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from harness import (
    cluster_peers,
    collectives_report,
    machine,
    peers,
    program,
    report,
    rounds,
)
from harness.build import CHECKOUT, PERF
from harness.collectives_report import Results
from harness.figures import KIB, MIB, OURS
from harness.jobs import Job, Way, end_on_sigterm
from harness.shapes import Case, Shape, bits_per_second
from support import hosts

METHOD = (
    "Allreduce of float32, sum, out of place, on emulated hosts: namespaces of one machine, whose "
    "links are shaped to the rate that is named, or not. A call of as many tensors as a column "
    "says, of one length, that lie one behind the other, beside one of a single tensor of the same "
    "bytes (ringcoll). What lies in one tensor is sent from there; a piece of the pipeline that "
    "spans several is packed. A time is that of a batch of calls after a barrier, of its slowest "
    "rank, divided by the calls; the median batch of a visit; the median over rounds. Every round "
    "visits each in turn, the others idle. In brackets: the median over rounds of the time over "
    "that of the single tensor in the same round; above 1, that is faster."
)
SIZES = (256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB)
TENSORS = (16, 161, 1024)  # a ResNet-50 has 161 gradients


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--quick", action="store_true", help="one shape and rate, few sizes: a smoke test")
    add("--rates", default="10gbit,unshaped", help="of links; default %(default)s")
    add("--shapes", default="2x1,2x2", help="hosts x ranks; default %(default)s")
    add("--rounds", type=int, help="default 7")
    add("--visit", type=float, help="seconds of one visit, default 0.2")
    add("--library", type=Path, help="a libringcoll.so instead of a build of this")
    add("--build", type=Path, default=CHECKOUT / "build/perf")
    add("--output", type=Path, default=PERF / "results", help="a directory")
    arguments = parser.parse_args()
    quick = arguments.quick
    arguments.rounds = arguments.rounds or (2 if quick else 7)
    arguments.visit = arguments.visit or (0.02 if quick else 0.2)
    rates = ["unshaped"] if quick else arguments.rates.split(",")
    try:
        shapes = ["2x1"] if quick else [word for word in arguments.shapes.split(",") if word]
        for rate in rates:
            bits_per_second(rate)
        sizes = (MIB,) if quick else SIZES
        arguments.cases = [Case(Shape.parse(s), rate, sizes) for rate in rates for s in shapes]
    except ValueError as error:
        parser.error(str(error))
    return arguments


def measure_one(case: Case, arguments: argparse.Namespace, table: report.Results) -> None:
    rounds.progress(str(case))
    library = arguments.library and arguments.library.resolve()
    options = peers.Options(arguments.build.resolve(), library)
    ranks = case.shape.size
    with (
        tempfile.TemporaryDirectory(prefix="perf-") as folder,
        cluster_peers.make_cluster(case) as cluster,
    ):
        here = cluster_peers.Here(case, cluster, Path(folder))
        specs, missing = cluster_peers.find(options, [OURS], here)
        table.failures += [f"{name}: {reason}" for name, reason in missing.items()]
        started = rounds.start_jobs(specs, ranks, arguments.build / "logs", table)
        try:
            ours = started.get(OURS)
            if not isinstance(ours, Job):
                return
            ways: rounds.Jobs = {OURS: Way(ours, "-", {})}
            for count in TENSORS:
                name = f"{count} tensors"
                ways[name] = Way(ours, f"{count}-tensors", {"PERF_TENSORS": str(count)})
                table.peers[name] = ""
            plan = rounds.Plan(list(case.sizes), arguments.rounds, arguments.visit)
            rounds.run_rounds(ways, ranks, plan, table)
        finally:
            rounds.close_jobs(started)


def measure(arguments: argparse.Namespace, results: Results) -> None:
    for case in arguments.cases:
        table = report.Results(str(case), OURS, "", [], {}, results.peers)
        results.of[str(case)] = table
        measure_one(case, arguments, table)
        results.failures += [f"{case}: {text}" for text in table.failures]


def main() -> int:
    arguments = parse_arguments()
    end_on_sigterm()
    if reason := hosts.missing():
        print(f"perf/fused.py: {reason}", file=sys.stderr)
        return 1
    arguments.build.mkdir(parents=True, exist_ok=True)
    results = Results(
        title="Many tensors in a call, on emulated hosts",
        method=METHOD,
        machine=machine.describe(),
        peers={OURS: ""},
        missing={},
    )
    return program.measure_and_write(
        results,
        lambda: measure(arguments, results),
        arguments.output,
        "fused",
        quick=arguments.quick,
        form=collectives_report,
    )


if __name__ == "__main__":
    sys.exit(main())
