#!/usr/bin/env python3
"""Times steps of training with Horovod under RINGCOLL, GLOO and MPI, and what waiting costs them.

The digits of examples/ and a ResNet-50, each rank with as many threads as there are cores; then
rank 0 computes with all cores while the others wait for it, and while nobody does. Writes
perf/results/training-<machine>.json and .md. Run it with the Python of an environment that has
ringcoll, the Horovod that `ringcoll horovod build` makes, torch and scikit-learn.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from harness import figures, machine, program, report, rounds, training_report
from harness.build import PERF
from harness.horovod_jobs import OURS, add_arguments, find_jobs
from harness.jobs import Spec, end_on_sigterm

METHOD = (
    "Horovod jobs of {ranks} ranks on one host, started by horovodrun with Horovod's defaults; "
    "torch has a thread for each core in every rank. A step is a whole one: forward, backward, "
    "averages, new weights; its time is that of its slowest rank. ResNet-50: two pictures of 64 x "
    "64 pixels a rank. In the last two cases rank 0 multiplies matrices, and the others wait for "
    "it in an allreduce of 4 bytes, or sleep. The median step of a visit; the median over rounds. "
    "Every round visits each job in turn, the others stopped. A ratio is the median over rounds of "
    "a job's time divided by that under RINGCOLL in the same round."
)
# A case stands where other programs have a size.
CASES = {
    "digits": "digits",
    "resnet50": "ResNet-50",
    "waiting": training_report.WAITING,
    "alone": training_report.ALONE,
}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two rounds of short visits")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, help="default 7")
    parser.add_argument("--visit", type=float, help="seconds of one visit, default 1.5")
    parser.add_argument("--minutes", type=float, default=5, help="fewer rounds rather than longer")
    add_arguments(parser)
    arguments = parser.parse_args()
    arguments.rounds = arguments.rounds or (2 if arguments.quick else 7)
    arguments.visit = arguments.visit or (0.2 if arguments.quick else 1.5)
    return arguments


def measure(specs: list[Spec], arguments: argparse.Namespace, results: report.Results) -> None:
    limit = 60 * arguments.minutes / len(CASES)
    plan = rounds.Plan(
        list(results.labels),
        arguments.rounds,
        arguments.visit,
        limit,
        one_call=True,
        words=dict(enumerate(CASES)),
    )
    jobs = rounds.start_jobs(specs, arguments.ranks, arguments.build / "logs", results)
    try:
        rounds.run_rounds(jobs, arguments.ranks, plan, results)
    finally:
        rounds.close_jobs(jobs)


def main() -> int:
    # This directory has a horovod.py, which must not be taken for the package.
    sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != PERF]
    arguments = parse_arguments()
    end_on_sigterm()
    specs, missing = find_jobs(
        arguments.operations.split(","), arguments.library, driver="horovod_training.py"
    )
    results = report.Results(
        title="Horovod: steps of training",
        ours=OURS,
        method=METHOD.format(ranks=arguments.ranks),
        targets=[figures.Target(peer, arguments.ranks, 1, most=2) for peer in ("GLOO", "MPI")],
        machine=machine.describe(),
        peers={spec.name: spec.version for spec in specs},
        labels=dict(enumerate(CASES.values())),
        missing=missing,
    )
    return program.measure_and_write(
        results,
        lambda: measure(specs, arguments, results),
        arguments.output,
        "training",
        quick=arguments.quick,
        with_plot=False,
        form=training_report,
    )


if __name__ == "__main__":
    sys.exit(main())
