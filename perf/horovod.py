#!/usr/bin/env python3
"""Times Horovod's allreduce of a ResNet-50's gradients under RINGCOLL, GLOO and MPI, interleaved.

Each is a real horovodrun job of two ranks that stays up; they are visited in turn, the others
stopped. Writes perf/results/horovod-<machine>.json, .md and .svg. Run it with the Python of an
environment that has ringcoll and the Horovod that `ringcoll horovod build` makes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from harness import distance, figures, fused_calls, machine, program, report, resnet50, rounds
from harness.build import PERF
from harness.horovod_jobs import (
    BEFORE,
    OURS,
    add_arguments,
    find_jobs,
    with_before,
)
from harness.jobs import JobError, Spec, end_on_sigterm

METHOD = (
    "Horovod jobs of {ranks} ranks on one host, started by horovodrun with Horovod's defaults. A "
    "step submits its gradients (float32) one by one with allreduce_async_, op Average, and "
    "waits for all, and comes a random time of up to 2 ms after the one before, in which the "
    "ranks sleep, or compute where it is said; its time is that of its slowest rank. The median "
    "step of a visit; the median over rounds. Every round visits each job in turn, the others "
    "stopped. A ratio is the median over rounds of a job's time divided by that under RINGCOLL "
    "in the same round. Averages are compared, element by element, before a case is timed. "
    "Where there are two CPUs, the round trip of a cache line between them is taken before and "
    "after each visit (one core, near, far); visits in which that changed do not count, and each "
    "state has its own tables. The allreduces that a step's tensors are fused into are counted "
    f"afterwards, in timelines. The peer {BEFORE} (if there is one) is RINGCOLL with another build "
    "of the library."
)

# At the gradients of the ResNet-50; two threads of a core are near, too.
TARGETS = {
    (distance.ONE_CORE, distance.NEAR): {"GLOO": 7, "MPI": 5},
    (distance.FAR,): {"GLOO": 5, "MPI": 4},
}

# Of a step of one small tensor that a rank submits while it is awake; a size that no other has.
AWAKE_BYTES = 8


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two rounds, 16 MiB at most")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--classes", type=int, default=10, help="of the ResNet-50; default 10")
    parser.add_argument("--rounds", type=int, help="default 9")
    parser.add_argument("--visit", type=float, help="seconds of one visit, default 0.8")
    parser.add_argument("--minutes", type=float, default=5, help="fewer rounds rather than longer")
    parser.add_argument("--before", type=Path, help="another libringcoll.so, measured beside")
    add_arguments(parser)
    arguments = parser.parse_args()
    if arguments.before and not arguments.before.is_file():
        parser.error(f"--before: {arguments.before} is no file")
    arguments.rounds = arguments.rounds or (2 if arguments.quick else 9)
    arguments.visit = arguments.visit or (0.1 if arguments.quick else 0.8)
    return arguments


def count_fused(
    specs: list[Spec], arguments: argparse.Namespace, word: str, results: report.Results
) -> None:
    found = []
    for spec in specs:
        try:
            calls = fused_calls.calls_of_a_step(
                spec, arguments.ranks, word, arguments.build / "logs"
            )
            found.append(f"{spec.name} {calls:.1f}")
        except JobError as error:
            results.failures.append(f"fused calls: {error}")
    results.conditions["allreduces of a ResNet-50 step"] = ", ".join(found)


def measure(
    specs: list[Spec], arguments: argparse.Namespace, plan: rounds.Plan, results: report.Results
) -> None:
    jobs = rounds.start_jobs(specs, arguments.ranks, arguments.build / "logs", results)
    try:
        rounds.measure_idle(jobs, arguments.ranks, results)
        rounds.run_rounds(jobs, arguments.ranks, plan, results)
    finally:
        rounds.close_jobs(jobs)
    word = plan.words[max(plan.words)]
    count_fused(specs, arguments, word, results)


def main() -> int:
    # This directory has a horovod.py, which must not be taken for the package.
    sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != PERF]
    arguments = parse_arguments()
    end_on_sigterm()
    specs, missing = find_jobs(arguments.operations.split(","), arguments.library)
    specs += with_before(specs, arguments.before)
    shapes = resnet50.gradient_shapes(arguments.classes)
    gradients = 4 * resnet50.elements(shapes)
    sizes = [4, AWAKE_BYTES, figures.MIB, gradients, (16 if arguments.quick else 256) * figures.MIB]
    results = report.Results(
        title="Horovod: the gradients of a ResNet-50",
        ours=OURS,
        method=METHOD.format(ranks=arguments.ranks),
        targets=[
            figures.Target(peer, arguments.ranks, ratio, gradients, gradients, states)
            for states, ratios in TARGETS.items()
            for peer, ratio in ratios.items()
        ],
        machine=machine.describe(),
        peers={spec.name: spec.version for spec in specs},
        labels={
            AWAKE_BYTES: f"{AWAKE_BYTES} B, after computing",
            gradients: f"ResNet-50: {len(shapes)} tensors, {gradients / 1e6:.1f} MB",
        },
        missing=missing,
    )
    limit = 60 * arguments.minutes / len(sizes)
    plan = rounds.Plan(sizes, arguments.rounds, arguments.visit, limit, one_call=True)
    arguments.build.mkdir(parents=True, exist_ok=True)
    plan.take_distance = distance.taker(arguments.build)
    plan.words[AWAKE_BYTES] = f"computing:{AWAKE_BYTES}"
    plan.words[gradients] = f"resnet50:{arguments.classes}"
    return program.measure_and_write(
        results,
        lambda: measure(specs, arguments, plan, results),
        arguments.output,
        "horovod-before" if arguments.before else "horovod",
        quick=arguments.quick,
    )


if __name__ == "__main__":
    sys.exit(main())
