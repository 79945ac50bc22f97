#!/usr/bin/env python3
"""Times allreduce (float32, sum) of ringcoll beside its peers and a pace-maker, interleaved.

Compiles what it needs into build/perf, starts each peer once for 2 and once for 4 ranks, visits
them in turn, and writes perf/results/allreduce-<machine>.json, .md and .svg. perf/README.md says
what is measured and how.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from harness import distance, figures, machine, peers, program, report, rounds
from harness.build import CHECKOUT, PERF
from harness.jobs import Job, Way, end_on_sigterm

METHOD = (
    "Allreduce of float32, sum, out of place (gloo: in place, which spares it a copy), one host. "
    "A time is that of a batch of calls back to back after a barrier, of its slowest rank, divided "
    "by the calls; the median batch of a visit; the median over rounds. Every round visits each "
    "peer in turn, the others idle. A ratio is the median over rounds of a peer's time divided by "
    "ringcoll's in the same round: above 1, ringcoll is faster. Sums are compared, element by "
    "element, before a size is timed. Before and after each visit the round trip of a cache line "
    "between the two cores is taken (one core, near, far); visits in which that changed do not "
    "count, and each state has its own tables. The pace-maker and the copy bound are limits: in "
    "each round the best of the ways of perf/pacemaker.c, its ranks pinned, that the second table "
    "has."
)
ARENA_AND_REST = (64 + 16) * figures.MIB
# Both buffers of every rank of every job are there at once; leave the rest of the memory alone.
MEMORY_SHARE = 0.7


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few sizes, two rounds: a smoke test")
    parser.add_argument("--sizes", help="comma-separated, such as 4,64KiB,16M")
    parser.add_argument("--ranks", default="2,4", help="default 2,4")
    parser.add_argument("--peers", help=f"comma-separated, of: {', '.join(peers.FINDERS)}")
    parser.add_argument("--rounds", type=int, help="default 9")
    parser.add_argument("--visit", type=float, help="seconds of one visit, default 0.1")
    parser.add_argument("--passes", type=int, default=3, help="over all sizes; default 3")
    parser.add_argument("--minutes", type=float, default=12, help="fewer rounds rather than longer")
    program.add_libraries(parser)
    parser.add_argument("--intel-prefix", type=Path, help="where oneCCL and Intel MPI are")
    parser.add_argument("--install-peers", action="store_true", help="get all MPIs from PyPI")
    parser.add_argument("--pin", action="store_true", help="pin the ranks of ringcoll and gloo too")
    parser.add_argument("--build", type=Path, default=CHECKOUT / "build/perf")
    parser.add_argument("--output", type=Path, default=PERF / "results", help="a directory")
    arguments = parser.parse_args()
    quick = arguments.quick
    arguments.rounds = arguments.rounds or (2 if quick else 9)
    arguments.visit = arguments.visit or (0.02 if quick else 0.1)
    try:
        program.check_libraries(arguments)
        named = arguments.sizes or ("4,1K,64K,1M,16M" if quick else "")
        sizes = [figures.parse_size(s) for s in named.split(",") if s]
        arguments.sizes = sizes or figures.SIZES
        arguments.ranks = [int(n) for n in arguments.ranks.split(",")]
    except ValueError as error:
        parser.error(str(error))
    return arguments


def find_peers(arguments: argparse.Namespace) -> tuple[list[peers.Spec], dict[str, str]]:
    options = peers.Options(
        build=arguments.build.resolve(),
        library=arguments.library and arguments.library.resolve(),
        intel_prefix=arguments.intel_prefix and arguments.intel_prefix.resolve(),
        pin=arguments.pin,
        before=arguments.before and arguments.before.resolve(),
        before_include=program.include_of(arguments.before_header),
    )
    if arguments.install_peers:
        rounds.progress("install the MPIs and oneCCL into build/perf/peers*")
        peers.install_all(options.build)
    names = arguments.peers.split(",") if arguments.peers else None
    rounds.progress("build")
    return peers.find(options, names)


def fitting(sizes: list[int], ranks: int, jobs: int, results: report.Results) -> list[int]:
    """The sizes whose buffers fit into memory, all jobs' together."""
    room = MEMORY_SHARE * machine.available_bytes()
    kept = [size for size in sizes if 2 * size * ranks * jobs < room]
    for size in sorted(set(sizes) - set(kept)):
        results.failures.append(f"{ranks} ranks, {figures.format_size(size)}: too little memory")
    return kept


def note_memory(results: report.Results, ranks: int, size: int, jobs: rounds.Jobs) -> None:
    job = jobs.get(figures.OURS)
    if not job:
        return
    answers = [[int(word) for word in answer] for answer in job.ask("memory", "memory")]
    job.ask("free", "freed")  # or the next size's peak would be that of these buffers
    job.ask("memory", "memory")
    above = max(peak - buffers for peak, buffers in answers) * 1024
    before = [m for m in results.memory if (m.ranks, m.size) == (ranks, size)]
    if before:  # in an earlier pass
        before[0].above_buffers = max(before[0].above_buffers, above)
    else:
        results.memory.append(report.Memory(ranks, size, above))


def with_ways_to_limits(jobs: rounds.Jobs, ranks: int, results: report.Results) -> rounds.Jobs:
    """The pace-maker's job in all its ways, where there are two ranks."""
    pacemaker = jobs.get(figures.PACEMAKER)
    if ranks != 2 or not isinstance(pacemaker, Job):
        return jobs
    found: rounds.Jobs = {}
    for limit, ways in peers.WAYS.items():
        results.limits[limit] = list(ways)
        found |= {way: Way(pacemaker, way, settings) for way, settings in ways.items()}
    return found | {name: job for name, job in jobs.items() if job is not pacemaker}


def measure(
    specs: list[peers.Spec], arguments: argparse.Namespace, results: report.Results
) -> None:
    for ranks in arguments.ranks:
        rounds.progress(f"{ranks} ranks")
        jobs = rounds.start_jobs(specs, ranks, arguments.build / "logs", results)
        ways = with_ways_to_limits(jobs, ranks, results)
        sizes = fitting(arguments.sizes, ranks, len(jobs), results)
        limit = 60 * arguments.minutes / (len(arguments.sizes) * len(arguments.ranks))
        plan = rounds.Plan(sizes, arguments.rounds, arguments.visit, limit)
        plan.after_size = lambda size, left, n=ranks: note_memory(results, n, size, left)
        plan.passes = arguments.passes
        watch = distance.Watch(arguments.build)
        plan.take_distance = watch.take if watch.take() else None
        try:
            rounds.measure_idle(jobs, ranks, results)
            rounds.run_rounds(ways, ranks, plan, results)
        finally:
            rounds.close_jobs(jobs)


def with_limits(named: dict[str, str]) -> dict[str, str]:
    limits = dict.fromkeys(peers.WAYS if figures.PACEMAKER in named else [], "")
    return limits | named


def main() -> int:
    arguments = parse_arguments()
    end_on_sigterm()
    specs, missing = find_peers(arguments)
    results = report.Results(
        title="Allreduce on one host",
        ours=figures.OURS,
        method=METHOD,
        targets=figures.TARGETS,
        machine=machine.describe(),
        peers=with_limits({spec.name: spec.version for spec in specs}),
        missing=missing,
        memory_bound=ARENA_AND_REST,
    )
    return program.measure_and_write(
        results,
        lambda: measure(specs, arguments, results),
        arguments.output,
        "allreduce",
        quick=arguments.quick,
    )


if __name__ == "__main__":
    sys.exit(main())
