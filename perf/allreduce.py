#!/usr/bin/env python3
"""Times allreduce (float32, sum) of ringcoll beside its peers and a pace-maker, interleaved.

Compiles what it needs into build/perf, starts each peer once for 2 and once for 4 ranks, visits
them in turn, and writes perf/results/allreduce-<machine>.json, .md and .svg. perf/README.md says
what is measured and how.
"""

from __future__ import annotations

import argparse
import sys

from harness import figures, machine, one_host, peers, program, report, rounds
from harness.jobs import Job, Way, end_on_sigterm

METHOD = (
    "Allreduce of float32, sum, out of place (gloo: in place, which spares it a copy), one host. "
    f"{one_host.HOW_ROUNDS} Sums are compared, element by element, before a size is timed. "
    f"{one_host.HOW_FAR} The pace-maker and the copy bound are limits: in each round the best of "
    "the ways of perf/pacemaker.c, its ranks pinned, that the second table has."
)
ARENA_AND_REST = (64 + 16) * figures.MIB


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    one_host.add_arguments(parser, "2,4", peers.FINDERS)
    arguments = parser.parse_args()
    try:
        one_host.complete(arguments, figures.SIZES, "4,1K,64K,1M,16M", peers.FINDERS)
    except ValueError as error:
        parser.error(str(error))
    return arguments


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
        with one_host.started(specs, ranks, arguments, results) as jobs:
            sizes = one_host.fitting(arguments.sizes, ranks, len(jobs), results)
            plan = one_host.plan(arguments, sizes, len(arguments.ranks))
            plan.after_size = lambda size, left, n=ranks: note_memory(results, n, size, left)
            rounds.run_rounds(with_ways_to_limits(jobs, ranks, results), ranks, plan, results)


def with_limits(named: dict[str, str]) -> dict[str, str]:
    limits = dict.fromkeys(peers.WAYS if figures.PACEMAKER in named else [], "")
    return limits | named


def main() -> int:
    arguments = parse_arguments()
    end_on_sigterm()
    specs, missing = one_host.find_peers(arguments, arguments.peers)
    results = report.Results(
        title="Allreduce on one host",
        ours=figures.OURS,
        method=one_host.method(METHOD, arguments),
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
        one_host.name_of("allreduce", arguments),
        quick=arguments.quick,
    )


if __name__ == "__main__":
    sys.exit(main())
