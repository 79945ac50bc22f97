#!/usr/bin/env python3
"""Times reduce_scatter, allgather, broadcast and alltoall of ringcoll on one host beside MPIs.

Compiles what it needs into build/perf, starts each library once for each collective, visits them in
turn, and writes perf/results/collectives-<machine>.json, .md and .svg. perf/README.md says what is
measured and how.
"""

from __future__ import annotations

import argparse
import sys

from harness import collectives, collectives_report, figures, machine, one_host, program, rounds
from harness.collectives import COLLECTIVES, PEERS, TO_64_MIB, VECTORS
from harness.collectives_report import Results
from harness.jobs import Spec, end_on_sigterm
from harness.report import Results as Table

METHOD = (
    "float32, sum, out of place, one host. A size is that of the whole vector: "
    + "; ".join(f"{name}, {what}" for name, what in VECTORS.items())
    + ". Where ranks have parts these are of one length, and of at least one element. "
    f"{one_host.HOW_ROUNDS} The root of a broadcast waits for nobody, so that a call may begin "
    "before the last has ended elsewhere. What came is compared, element by element, before a size "
    f"is timed. {one_host.HOW_FAR}"
)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    one_host.add_arguments(parser, "2", PEERS)
    parser.add_argument("--collectives", default=",".join(COLLECTIVES), help="default %(default)s")
    arguments = parser.parse_args()
    try:
        one_host.complete(arguments, TO_64_MIB, "4,64K,1M", PEERS)
        named = one_host.listed("--collectives", arguments.collectives, COLLECTIVES)
        arguments.collectives = named
    except ValueError as error:
        parser.error(str(error))
    return arguments


def measure_one(
    collective: str, specs: list[Spec], arguments: argparse.Namespace, table: Table
) -> None:
    parts = len(arguments.collectives) * len(arguments.ranks)
    for ranks in arguments.ranks:
        rounds.progress(f"{collective}, {ranks} ranks")
        with one_host.started(specs, ranks, arguments, table) as jobs:
            sizes = collectives.sizes_of(collective, arguments.sizes, ranks)
            sizes = one_host.fitting(sizes, ranks, len(jobs), table)
            plan = one_host.plan(arguments, sizes, parts)
            rounds.run_rounds(jobs, ranks, plan, table)


def measure(specs: list[Spec], arguments: argparse.Namespace, results: Results) -> None:
    for name in arguments.collectives:
        targets = collectives.targets(arguments.ranks)
        table = Table(name, figures.OURS, "", targets, {}, results.peers)
        results.of[name] = table
        measure_one(name, collectives.told(specs, name), arguments, table)
        results.failures += [f"{name}, {text}" for text in table.failures]


def main() -> int:
    arguments = parse_arguments()
    end_on_sigterm()
    names = arguments.peers or collectives.DEFAULT_PEERS
    specs, missing = one_host.find_peers(arguments, names)
    results = Results(
        title="Collectives on one host",
        method=one_host.method(METHOD, arguments),
        machine=machine.describe(),
        peers={spec.name: spec.version for spec in specs},
        missing=missing,
    )
    return program.measure_and_write(
        results,
        lambda: measure(specs, arguments, results),
        arguments.output,
        one_host.name_of("collectives", arguments),
        quick=arguments.quick,
        form=collectives_report,
    )


if __name__ == "__main__":
    sys.exit(main())
