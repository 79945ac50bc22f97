#!/usr/bin/env python3
"""Times Horovod's allreduce of a ResNet-50's gradients under RINGCOLL, GLOO and MPI, interleaved.

Each is a real horovodrun job of two ranks that stays up; they are visited in turn, the others
stopped. Writes perf/results/horovod-<machine>.json, .md and .svg. Run it with the Python of an
environment that has ringcoll and the Horovod that `ringcoll horovod build` makes.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

from harness import figures, machine, peers, report, resnet50, rounds
from harness.build import CHECKOUT, DRIVERS, PERF
from harness.jobs import Spec, end_on_sigterm

OURS = "RINGCOLL"
METHOD = (
    "Horovod jobs of {ranks} ranks on one host, started by horovodrun with Horovod's defaults. A "
    "step submits its gradients (float32) one by one with allreduce_async_, op Average, and waits "
    "for all; its time is that of its slowest rank. The median step of a visit; the median over "
    "rounds. Every round visits each job in turn, the others stopped. A ratio is the median over "
    "rounds of a job's time divided by that under RINGCOLL in the same round. Averages are "
    "compared, element by element, before a case is timed."
)
LAUNCHERS = {OURS: "--gloo", "GLOO": "--gloo", "MPI": "--mpi"}
# A job that is stopped while others are measured must not find its deadlines passed.
DEADLINES = {"RINGCOLL_TIMEOUT_S": "600", "HOROVOD_GLOO_TIMEOUT_SECONDS": "600"}
# Prints the operations that this Horovod was built with.
BUILT_WITH = """
from horovod.torch.mpi_ops import _basics as basics
names = ("RINGCOLL", "GLOO", "MPI")
print(*(name for name in names if getattr(basics, name.lower() + "_built", lambda: False)()))
"""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two rounds, 16 MiB at most")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--classes", type=int, default=10, help="of the ResNet-50; default 10")
    parser.add_argument("--operations", default="RINGCOLL,GLOO,MPI")
    parser.add_argument("--rounds", type=int, help="default 9")
    parser.add_argument("--visit", type=float, help="seconds of one visit, default 0.8")
    parser.add_argument("--minutes", type=float, default=5, help="fewer rounds rather than longer")
    parser.add_argument("--library", type=Path, help="a libringcoll.so instead of the installed")
    parser.add_argument("--build", type=Path, default=CHECKOUT / "build/perf")
    parser.add_argument("--output", type=Path, default=PERF / "results", help="a directory")
    arguments = parser.parse_args()
    arguments.rounds = arguments.rounds or (2 if arguments.quick else 9)
    arguments.visit = arguments.visit or (0.1 if arguments.quick else 0.8)
    return arguments


def horovodrun() -> str:
    beside = Path(sys.executable).parent / "horovodrun"
    return str(beside) if beside.exists() else shutil.which("horovodrun") or ""


def find_jobs(operations: list[str], library: Path | None) -> tuple[list[Spec], dict[str, str]]:
    """The jobs that this Horovod can run, and why not the others."""
    launcher = horovodrun()
    if not launcher or not importlib.util.find_spec("horovod.torch"):
        reason = f"no Horovod for {sys.executable}; `ringcoll horovod install` makes it"
        return [], dict.fromkeys(operations, reason)
    check = subprocess.run(
        [sys.executable, "-P", "-c", BUILT_WITH], capture_output=True, text=True, check=False
    )
    if check.returncode:
        reason = f"Horovod cannot be imported: {check.stderr.strip().splitlines()[-1]}"
        return [], dict.fromkeys(operations, reason)
    version = peers.version_of(
        sys.executable, "-c", "from importlib.metadata import version; print(version('horovod'))"
    )
    specs, missing = [], {}
    for name in operations:
        if name not in check.stdout.split():
            missing[name] = "this Horovod was built without it"
            continue
        command = [launcher, "-np", "{ranks}", LAUNCHERS.get(name, "--gloo")]
        command += [sys.executable, str(DRIVERS / "horovod_allreduce.py"), "{socket}"]
        environment = {"HOROVOD_CPU_OPERATIONS": name, **DEADLINES, **peers.AS_ROOT}
        if name == OURS and library:
            environment["RINGCOLL_LIBRARY"] = str(library.resolve())
        specs.append(Spec(name, command, f"Horovod {version}", environment, pause_when_idle=True))
    return specs, missing


def main() -> int:
    # This directory has a horovod.py, which must not be taken for the package.
    sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != PERF]
    arguments = parse_arguments()
    end_on_sigterm()
    specs, missing = find_jobs(arguments.operations.split(","), arguments.library)
    for name, reason in missing.items():
        rounds.progress(f"  without {name}: {reason}")
    shapes = resnet50.gradient_shapes(arguments.classes)
    gradients = 4 * resnet50.elements(shapes)
    sizes = [4, figures.MIB, gradients, (16 if arguments.quick else 256) * figures.MIB]
    described = machine.describe()
    results = report.Results(
        title="Horovod: the gradients of a ResNet-50",
        ours=OURS,
        method=METHOD.format(ranks=arguments.ranks),
        targets=[figures.Target("GLOO", arguments.ranks, 2, gradients, gradients)],
        machine=described,
        peers={spec.name: spec.version for spec in specs},
        labels={gradients: f"ResNet-50: {len(shapes)} tensors, {gradients / 1e6:.1f} MB"},
        missing=missing,
    )
    limit = 60 * arguments.minutes / len(sizes)
    plan = rounds.Plan(sizes, arguments.rounds, arguments.visit, limit, one_call=True)
    plan.words[gradients] = f"resnet50:{arguments.classes}"
    quiet = machine.Quiet()
    if quiet.warning:
        rounds.progress(f"WARNING: {quiet.warning}")
    jobs = rounds.start_jobs(specs, arguments.ranks, arguments.build / "logs", results)
    try:
        rounds.measure_idle(jobs, arguments.ranks, results)
        rounds.run_rounds(jobs, arguments.ranks, plan, results)
    finally:
        rounds.close_jobs(jobs)
    if not results.rounds:
        rounds.progress("nothing could be measured")
        return 1
    results.conditions = quiet.report()
    name = f"horovod-{machine.slug(described)}" + ("-quick" if arguments.quick else "")
    for path in report.write(results, arguments.output / name):
        rounds.progress(f"wrote {os.path.relpath(path)}")
    print(report.to_markdown(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
