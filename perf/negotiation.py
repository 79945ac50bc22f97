#!/usr/bin/env python3
"""Times one negotiation of Horovod, an allreduce of 4 bytes, under RINGCOLL, GLOO and MPI.

With HOROVOD_CYCLE_TIME at 1 and at 0.1 ms, on a quiet machine and beside other work: one busy
process for each core. Writes perf/results/negotiation-<machine>.json and .md. Run it with the
Python of an environment that has ringcoll and the Horovod that `ringcoll horovod build` makes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from harness import figures, machine, program, report, rounds
from harness.build import PERF
from harness.horovod_jobs import OURS, add_arguments, find_jobs
from harness.jobs import end_on_sigterm

METHOD = (
    "Horovod jobs of {ranks} ranks on one host, started by horovodrun. A step is one allreduce "
    "of 4 bytes, submitted and waited for, a random time of up to 2 ms after the one before: a "
    "negotiation and little else; its time is that of its slowest rank. The median step of a "
    "visit; the median over rounds. Every round visits each job in turn, the others stopped. A "
    "ratio is the median over rounds of a job's time divided by that under RINGCOLL in the same "
    "round. Loaded: beside one process for each core that never sleeps, of the same priority."
)
CYCLES_MS = ["1", "0.1"]
# A case stands where other programs have a size.
CASES = [(cycle, loaded) for loaded in (False, True) for cycle in CYCLES_MS]
RANKS = 2


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--visit", type=float, default=0.5, help="seconds of one visit")
    add_arguments(parser)
    return parser.parse_args()


@contextlib.contextmanager
def load(on: bool) -> Iterator[None]:
    """Keeps every core busy meanwhile."""
    command = [sys.executable, "-c", "while True: pass"]
    cores = len(os.sched_getaffinity(0)) if on else 0
    busy = [subprocess.Popen(command) for _ in range(cores)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def measure(arguments: argparse.Namespace, results: report.Results) -> None:
    for cycle in CYCLES_MS:
        measure_cycle(cycle, arguments, results)


def measure_cycle(cycle: str, arguments: argparse.Namespace, results: report.Results) -> None:
    """The cases with this cycle time: each job is started once."""
    operations = arguments.operations.split(",")
    specs, missing = find_jobs(operations, arguments.library, HOROVOD_CYCLE_TIME=cycle)
    results.missing.update(missing)
    results.peers.update({spec.name: spec.version for spec in specs})
    jobs = rounds.start_jobs(specs, RANKS, arguments.build / "logs", results)
    try:
        for i, (of_case, loaded) in enumerate(CASES):
            if of_case == cycle:
                plan = rounds.Plan([i], arguments.rounds, arguments.visit, one_call=True)
                plan.words[i] = "4"
                with load(loaded):
                    rounds.run_rounds(jobs, RANKS, plan, results)
    finally:
        rounds.close_jobs(jobs)


def main() -> int:
    # This directory has a horovod.py, which must not be taken for the package.
    sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != PERF]
    arguments = parse_arguments()
    end_on_sigterm()
    results = report.Results(
        title="Horovod: one negotiation",
        ours=OURS,
        method=METHOD.format(ranks=RANKS),
        targets=[figures.Target("MPI", RANKS, 1)],
        machine=machine.describe(),
        peers={},
        labels={
            i: f"cycle time {cycle} ms, {'loaded' if loaded else 'quiet'}"
            for i, (cycle, loaded) in enumerate(CASES)
        },
    )
    return program.measure_and_write(
        results,
        lambda: measure(arguments, results),
        arguments.output,
        "negotiation",
        with_plot=False,
    )


if __name__ == "__main__":
    sys.exit(main())
