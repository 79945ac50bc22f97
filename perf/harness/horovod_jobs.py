"""Horovod's jobs: real ones, started by horovodrun, under each of its CPU backends."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

from . import peers
from .build import CHECKOUT, DRIVERS, PERF
from .jobs import Spec

OURS = "RINGCOLL"
BEFORE = "RINGCOLL before"
LAUNCHERS = {OURS: "--gloo", "GLOO": "--gloo", "MPI": "--mpi"}
# A job that is stopped while others are measured must not find its deadlines passed.
DEADLINES = {"RINGCOLL_TIMEOUT_S": "600", "HOROVOD_GLOO_TIMEOUT_SECONDS": "600"}
# Prints the operations that this Horovod was built with.
BUILT_WITH = """
from horovod.torch.mpi_ops import _basics as basics
names = ("RINGCOLL", "GLOO", "MPI")
print(*(name for name in names if getattr(basics, name.lower() + "_built", lambda: False)()))
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What all programs that start such jobs are told."""
    add = parser.add_argument
    add("--operations", default=",".join(LAUNCHERS))
    add("--library", type=Path, help="a libringcoll.so instead of the installed")
    add("--build", type=Path, default=CHECKOUT / "build/perf")
    add("--output", type=Path, default=PERF / "results", help="a directory")


def horovodrun() -> str:
    beside = Path(sys.executable).parent / "horovodrun"
    return str(beside) if beside.exists() else shutil.which("horovodrun") or ""


def find_jobs(
    operations: list[str],
    library: Path | None,
    *,
    driver: str = "horovod_allreduce.py",
    **settings: str,
) -> tuple[list[Spec], dict[str, str]]:
    """The jobs that this Horovod can run, and why not the others. `driver`: what each rank runs, of
    perf/drivers; `settings`: variables of all."""
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
        command += [sys.executable, str(DRIVERS / driver), "{socket}"]
        environment = {"HOROVOD_CPU_OPERATIONS": name, **settings, **DEADLINES, **peers.AS_ROOT}
        if name == OURS and library:
            environment["RINGCOLL_LIBRARY"] = str(library.resolve())
        specs.append(Spec(name, command, f"Horovod {version}", environment, pause_when_idle=True))
    return specs, missing


def with_before(specs: list[Spec], library: Path | None) -> list[Spec]:
    """The job under RINGCOLL, if there is one, once more with another libringcoll.so, if one is
    named. Its C ABI must be that of the installed ringcoll, as Horovod's side of it stays."""
    if not library:
        return []
    variable = {"RINGCOLL_LIBRARY": str(library.resolve())}
    return [
        dataclasses.replace(spec, name=BEFORE, environment={**spec.environment, **variable})
        for spec in specs
        if spec.name == OURS
    ]
