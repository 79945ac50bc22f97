#!/usr/bin/env python3
"""Times allreduce (float32) on emulated hosts: ringcoll as it chooses and by each of its rows,
gloo, Open MPI, MPICH and Intel MPI, interleaved.

Needs root: hosts are namespaces joined by links of a chosen rate (ci/support/hosts.py). Writes
perf/results/cluster-<machine>.json, .md and .svg. perf/README.md says what is measured and how.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from harness import (
    cluster_peers,
    cluster_report,
    figures,
    jobs,
    machine,
    peers,
    prices,
    program,
    report,
    rounds,
)
from harness.build import CHECKOUT, PERF
from harness.cluster_report import Table
from harness.figures import KIB, MIB, OURS
from harness.jobs import Job, JobError, Way, end_on_sigterm
from harness.shapes import UNSHAPED, Case, Shape, bits_per_second
from support import hosts

METHOD = (
    "Allreduce of float32, sum, out of place (gloo: in place), on emulated hosts: namespaces of "
    "one machine, whose links are shaped to the rate that is named, in each direction. The bound "
    "is what 2n(H-1)/H bytes take on a host's link; headers are not counted (frames have 9000 "
    "bytes, and headers 0.7 %). A time is that of a batch of calls after a barrier, of its slowest "
    "rank, divided by the calls; the median batch of a visit; the median over rounds. Every round "
    "visits each in turn, the others idle. In brackets: the median over rounds of a peer's time "
    "over that of ringcoll in the same round; above 1, ringcoll is faster. Regret: the same of "
    "ringcoll as it chooses, over its best row by name. Processor time is that of all ranks, for a "
    "GiB of every rank's vector. Predicted: what ringcoll's price says of the row, with the costs "
    "that the job has measured (ringcoll_simulate). Averages are sums that are multiplied "
    "afterwards where a peer has no average."
)
SIZES = [KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB]
SHAPES = "2x1,2x2,2x4,4x2,3x2,5x4,1+2+4"
RACKS = "4x1,4x2"
NETWORKS = "2x1,2x2"
AVERAGES = "2x4,3x4,4x4,5x4"
MEMORY_SHARE = 0.6
ANSWER_TIMEOUT_S = 400.0  # 20 ranks that fill and compare 256 MiB each on two processors
# What is this much slower than the best, where bytes count, is left out of larger sizes.
HOPELESS_WAY, HOPELESS_PEER, HOPELESS_FROM = 2.5, 20, MIB


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--quick", action="store_true", help="2x2, few sizes, two rounds: a smoke test")
    add("--rates", default=f"1gbit,10gbit,{UNSHAPED}", help="of links; default %(default)s")
    add("--shapes", default=SHAPES, help="hosts x ranks, or ranks of each; default %(default)s")
    add(
        "--racks", default=RACKS, help="shapes in two racks, at the first rate; default %(default)s"
    )
    add(
        "--networks",
        default=NETWORKS,
        help="shapes with two networks, at the first rate; default %(default)s",
    )
    add("--averages", default=AVERAGES, help="of 256 MiB, at the first rate; default %(default)s")
    add("--sizes", help="comma-separated, such as 1K,64KiB,16M; default 1 KiB to 256 MiB")
    add("--peers", help=f"comma-separated, of: {', '.join(cluster_peers.FINDERS)}")
    add("--no-rows", action="store_true", help="not ringcoll's rows by name, so no regret")
    add("--rounds", type=int, help="default 7")
    add("--visit", type=float, help="seconds of one visit, default 0.2")
    add("--minutes", type=float, default=90, help="fewer rounds rather than longer; default 90")
    program.add_libraries(parser)
    add("--install-peers", action="store_true", help="get Open MPI, MPICH, Intel MPI from PyPI")
    add("--build", type=Path, default=CHECKOUT / "build/perf")
    add("--name", default="cluster", help="what the files are called; default %(default)s")
    add("--output", type=Path, default=PERF / "results", help="a directory")
    arguments = parser.parse_args()
    quick = arguments.quick
    arguments.rounds = arguments.rounds or (2 if quick else 7)
    arguments.visit = arguments.visit or (0.02 if quick else 0.2)
    try:
        program.check_libraries(arguments)
        arguments.cases = quick_cases() if quick else cases(arguments)
    except ValueError as error:
        parser.error(str(error))
    return arguments


def quick_cases() -> list[Case]:
    return [Case(Shape.parse("2x2"), "1gbit", (KIB, MIB))]


def cases(arguments: argparse.Namespace) -> list[Case]:
    def shapes(text: str) -> list[Shape]:
        return [Shape.parse(word) for word in text.split(",") if word]

    rates = arguments.rates.split(",")
    for rate in rates:
        bits_per_second(rate)
    named = [figures.parse_size(word) for word in (arguments.sizes or "").split(",") if word]
    sizes = tuple(named or SIZES)
    large = tuple(size for size in sizes if size >= MIB)
    first = rates[0]
    found = [Case(shape, rate, sizes) for rate in rates for shape in shapes(arguments.shapes)]
    if first != UNSHAPED and large:
        found += [Case(shape, first, large, racks=True) for shape in shapes(arguments.racks)]
        found += [Case(shape, first, large, networks=2) for shape in shapes(arguments.networks)]
    averages = shapes(arguments.averages)
    return found + [Case(shape, first, (256 * MIB,), average=True) for shape in averages]


class Measurement:
    """One case, from its hosts to its table."""

    def __init__(self, case: Case, arguments: argparse.Namespace, limit_s: float) -> None:
        self._case, self._arguments, self._limit_s = case, arguments, limit_s
        library = arguments.library and arguments.library.resolve()
        before = arguments.before and arguments.before.resolve()
        include = program.include_of(arguments.before_header)
        self._options = peers.Options(
            arguments.build.resolve(), library, before=before, before_include=include
        )
        self.missing: dict[str, str] = {}
        results = report.Results(str(case), OURS, "", [], {"cpu": ""}, {})
        self.table = Table(case, results)

    def run(self) -> Table:
        rounds.progress(str(self._case))
        with (
            tempfile.TemporaryDirectory(prefix="perf-") as folder,
            cluster_peers.make_cluster(self._case) as cluster,
        ):
            cluster.write_ssh(Path(folder))
            self._measure(cluster_peers.Here(self._case, cluster, Path(folder)))
        return self.table

    def _measure(self, here: cluster_peers.Here) -> None:
        names = self._arguments.peers.split(",") if self._arguments.peers else None
        specs, self.missing = cluster_peers.find(self._options, names, here)
        results, ranks = self.table.results, self._case.shape.size
        results.peers |= {spec.name: spec.version for spec in specs}
        info = cluster_peers.describe(cluster_peers.library_of(self._options))
        settings, ways = cluster_peers.ways(info, here)
        cluster_peers.tell(specs, settings)
        logs = self._arguments.build / "logs"
        started = rounds.start_jobs(specs, ranks, logs, results)
        try:
            rounds.measure_idle(started, ranks, results)
            if isinstance(ours := started.get(OURS), Job):
                started |= self._add_ways(ours, ways)
            for size in self._case.sizes:
                self._measure_size(started, size)
            if self.table.rows and OURS in started:
                self._predict(started[OURS])
        finally:
            rounds.close_jobs(started)

    def _add_ways(self, ours: Job, ways: dict[str, dict[str, str]]) -> rounds.Jobs:
        apart = (cluster_peers.BY_NAMES, cluster_peers.ONE_NETWORK)
        without = {name for name in ways if name in apart}
        self.table.without = next(iter(without), "")
        self.table.streams = [name for name in ways if name.endswith(" streams")]
        known = {*without, *self.table.streams}
        self.table.rows = [name for name in ways if name not in known]
        if self._arguments.no_rows or self._case.average:
            self.table.rows = self.table.streams = []
        chosen = [*without, *self.table.rows, *self.table.streams]
        self.table.results.peers |= dict.fromkeys(chosen, "")
        # One process for all: they share its buffers. A name must be one word there.
        added: rounds.Jobs = {n: Way(ours, n.replace(" ", "-"), ways[n]) for n in chosen}
        return {OURS: Way(ours, "-", {}), "the process of ringcoll": ours} | added

    def _predict(self, ours: Job | Way) -> None:
        described = ours.ask("describe", "described")[0]
        self.table.costs = json.loads(" ".join(described))["costs"]
        cores = len(os.sched_getaffinity(0))
        if asked := prices.request(self._case, self.table.costs, cores):
            library = cluster_peers.library_of(self._options)
            self.table.predicted = prices.seconds(prices.simulate(library, asked))

    def _measure_size(self, started: rounds.Jobs, size: int) -> None:
        results, ranks = self.table.results, self._case.shape.size
        chosen = {
            n: job for n, job in started.items() if n in results.peers and self._hopes(n, size)
        }
        processes = sum(isinstance(job, Job) for job in started.values())
        room = MEMORY_SHARE * machine.available_bytes()
        if 2 * size * ranks > room:
            results.failures.append(f"{figures.format_size(size)}: too little memory")
            return
        plan = rounds.Plan([size], self._arguments.rounds, self._arguments.visit, self._limit_s)
        plan.free_after_visit = 2 * size * ranks * processes > room
        before = set(chosen)
        rounds.run_rounds(chosen, ranks, plan, results)
        for name in before - set(chosen):
            started.pop(name)
        for job in started.values():
            if isinstance(job, Job):
                with contextlib.suppress(JobError):  # it ended with one of its ways
                    job.ask("free", "freed")

    def _hopes(self, name: str, size: int) -> bool:
        """Who was far behind at a smaller size is not waited for at a larger one."""
        table = self.table
        smaller = [s for s in table.sizes if HOPELESS_FROM <= s < size]
        if name in (OURS, table.without) or not smaller:
            return True
        best = table.best([OURS, *table.rows], smaller[-1])
        ratio = table.ratio(name, smaller[-1], best) if best else None
        return ratio is not None and ratio < (
            HOPELESS_PEER if name in table.peers else HOPELESS_WAY
        )


def measure(arguments: argparse.Namespace, results: cluster_report.Results) -> None:
    end = time.monotonic() + 60 * arguments.minutes
    left = sum(len(case.sizes) for case in arguments.cases)
    for case in arguments.cases:
        limit_s = (end - time.monotonic()) / left
        left -= len(case.sizes)
        one = Measurement(case, arguments, limit_s)
        table = one.run()
        results.missing |= one.missing
        results.failures += [f"{case}: {failure}" for failure in table.results.failures]
        results.peers |= {n: v for n, v in table.results.peers.items() if n in [OURS, *table.peers]}
        results.tables.append(table)


def main() -> int:
    arguments = parse_arguments()
    end_on_sigterm()
    jobs.ANSWER_TIMEOUT_S = ANSWER_TIMEOUT_S
    if reason := hosts.missing():
        print(f"perf/cluster.py: {reason}", file=sys.stderr)
        return 1
    arguments.build.mkdir(parents=True, exist_ok=True)
    if arguments.install_peers:
        rounds.progress("install Open MPI, MPICH and Intel MPI into build/perf")
        cluster_peers.install(arguments.build.resolve())
    results = cluster_report.Results("Allreduce on emulated hosts", METHOD, machine.describe())
    return program.measure_and_write(
        results,
        lambda: measure(arguments, results),
        arguments.output,
        arguments.name,
        quick=arguments.quick,
        form=cluster_report,
    )


if __name__ == "__main__":
    sys.exit(main())
