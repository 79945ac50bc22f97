#!/usr/bin/env python3
"""Times allreduce over RDMA beside a raw stream of RDMA writes and ringcoll's own tcp, interleaved.

Boots a guest with a Soft-RoCE device (ci/rdma-vm) and measures there; with --here, on this
machine's own device. Writes verbs-<machine>.json, .md and .svg. perf/README.md says what is
measured and how.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from harness import build, figures, machine, peers, program, report, rounds
from harness.jobs import Job, Spec, end_on_sigterm

STREAM, TCP, UCX = "raw stream", "ringcoll tcp", "Open MPI, UCX"
METHOD = (
    "Allreduce of float32, sum, two ranks of one host, by one RDMA device "
    "(RINGCOLL_TRANSPORT=verbs) and by tcp, and of Open MPI over UCX by the same device. The raw "
    "stream (perf/drivers/verbs_stream.c) is the least that could be done: both ranks write as "
    "many bytes into each other's memory at once as an allreduce of two ranks moves, and add "
    "nothing. A time is that of a batch of calls back to back after a barrier, of its slowest "
    "rank, divided by the calls; the median batch of a visit; the median over rounds. Every "
    "round visits each in turn. A ratio is the median over rounds of a peer's time divided by "
    "that of ringcoll over verbs in the same round."
)
SIZES = [4, figures.KIB, 64 * figures.KIB, figures.MIB, 4 * figures.MIB, 16 * figures.MIB]
TARGETS = [
    figures.Target(STREAM, 2, 0.85, least=figures.MIB),
    figures.Target(TCP, 2, 1, least=figures.MIB),
]
RANKS = 2
COST_CALLS = 4


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--here", action="store_true", help="on this machine's device, no guest")
    parser.add_argument("--ucx-gid-index", type=int, help="for Open MPI's UCX (Soft-RoCE: 0)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--visit", type=float, default=0.4, help="seconds of one visit")
    program.add_libraries(parser)
    parser.add_argument("--build", type=Path, default=build.CHECKOUT / "build/perf")
    parser.add_argument("--output", type=Path, default=build.PERF / "results", help="a directory")
    arguments = parser.parse_args()
    try:
        program.check_libraries(arguments)
    except ValueError as wrong:
        parser.error(str(wrong))
    return arguments


def find(arguments: argparse.Namespace) -> tuple[list[Spec], dict[str, str]]:
    """What can be started, and why the rest cannot."""
    options = peers.Options(
        arguments.build.resolve(),
        arguments.library,
        before=arguments.before,
        before_include=program.include_of(arguments.before_header),
    )
    options.build.mkdir(parents=True, exist_ok=True)
    ours = peers.FINDERS[figures.OURS](options)
    source = build.DRIVERS / "verbs_stream.c"
    stream = build.compile_c("cc", [source], options.build / "verbs_stream", ["-libverbs"])
    by = {name: ours.environment | {"RINGCOLL_TRANSPORT": name} for name in ("verbs", "tcp")}
    specs = [
        Spec(STREAM, [str(stream), "{socket}", "{ranks}"], most_ranks=RANKS),
        replace(ours, environment=by["verbs"]),
        replace(ours, name=TCP, environment=by["tcp"]),
    ]
    if arguments.before:
        before = peers.library_before(options, arguments.before)
        over_verbs = {**before.environment, "RINGCOLL_TRANSPORT": "verbs"}
        specs.append(replace(before, environment=over_verbs))
    try:
        specs.append(replace(peers.openmpi_over_ucx(options, arguments.ucx_gid_index), name=UCX))
    except (peers.Missing, build.BuildError) as reason:
        return specs, {UCX: str(reason)}
    return specs, {}


def in_guest(arguments: argparse.Namespace) -> int:
    """Everything is built here: the guest's processors are emulated."""
    rounds.progress("build")
    find(arguments)
    library = arguments.library or arguments.build / "ringcoll/libringcoll.so"
    arguments.output.mkdir(parents=True, exist_ok=True)
    output = str(arguments.output.resolve())
    guest = [str(build.CHECKOUT / "ci/rdma-vm"), "--cpus=2", "--memory=4096", "--timeout=1200"]
    inside = [sys.executable, str(Path(__file__).resolve()), "--here", f"--library={library}"]
    inside += ["--ucx-gid-index=0"]
    if arguments.before:
        inside += [f"--before={arguments.before.resolve()}"]
        inside += [f"--before-header={arguments.before_header.resolve()}"]
    inside += [f"--rounds={arguments.rounds}", f"--visit={arguments.visit}", f"--output={output}"]
    return subprocess.run([*guest, f"--out={output}", "--", *inside], check=False).returncode


def note_cost(results: report.Results, jobs: dict[str, Job], size: int) -> None:
    """Processor time that a GiB of payload takes, of both ranks together."""
    for name, job in jobs.items():
        before = job.processor_seconds()
        job.ask(f"run {size} 1 {COST_CALLS}", "times")
        spent = (job.processor_seconds() - before) / (COST_CALLS * size / (1 << 30))
        results.conditions[f"processor time a GiB, {name}"] = f"{spent:.1f} s"


def measure(specs: list[Spec], arguments: argparse.Namespace, results: report.Results) -> None:
    jobs = rounds.start_jobs(specs, RANKS, arguments.build / "logs", results)
    try:
        rounds.run_rounds(
            jobs, RANKS, rounds.Plan(SIZES, arguments.rounds, arguments.visit), results
        )
        note_cost(results, jobs, SIZES[-1])
    finally:
        rounds.close_jobs(jobs)


def main() -> int:
    arguments = parse_arguments()
    end_on_sigterm()
    if not arguments.here:
        return in_guest(arguments)
    specs, missing = find(arguments)
    results = report.Results(
        title="Allreduce over RDMA",
        ours=figures.OURS,
        method=METHOD,
        targets=TARGETS,
        machine=machine.describe(),
        peers={spec.name: spec.version for spec in specs},
        missing=missing,
    )
    return program.measure_and_write(
        results,
        lambda: measure(specs, arguments, results),
        arguments.output,
        "verbs-before" if arguments.before else "verbs",
    )


if __name__ == "__main__":
    sys.exit(main())
