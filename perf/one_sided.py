#!/usr/bin/env python3
"""Times one-sided writes of agents over RDMA beside a raw stream of RDMA writes, interleaved.

Boots a guest with a Soft-RoCE device (ci/rdma-vm) and measures there; with --here, on this
machine's own device. Writes one-sided-verbs-<machine>.json, .md and .svg. perf/README.md says what
is measured and how.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from harness import build, figures, machine, peers, program, report, rounds
from harness.jobs import Job, Spec, end_on_sigterm

STREAM, TCP = "raw stream", "ringcoll tcp"
METHOD = (
    "Two processes of one host write a buffer into each other's memory at the same time, by one "
    "RDMA device: the raw stream (perf/drivers/verbs_stream.c) with verbs alone, ringcoll by "
    "agents, regions and notices (perf/drivers/agent_writes.c), and ringcoll also over TCP. A time "
    "is that of a batch of writes back to back after a barrier, of its slowest process, divided by "
    "the writes; the median batch of a visit; the median over rounds. Every round visits each in "
    "turn. A ratio is the median over rounds of a peer's time divided by that of ringcoll over "
    "RDMA in the same round. The owner's processor time is that of a process whose memory the "
    "other one reads and writes, and which itself waits for a notice; what the kernel does for a "
    "device in software is not in it."
)
SIZES = [64 * figures.KIB, figures.MIB, 4 * figures.MIB, 16 * figures.MIB, 64 * figures.MIB]
TARGETS = [figures.Target(STREAM, 2, 0.9, least=figures.MIB)]
PROCESSES = 2


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--here", action="store_true", help="on this machine's device, no guest")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--visit", type=float, default=0.4, help="seconds of one visit")
    parser.add_argument("--library", type=Path, help="a libringcoll.so instead of a build of this")
    parser.add_argument("--build", type=Path, default=build.CHECKOUT / "build/perf")
    parser.add_argument("--output", type=Path, default=build.PERF / "results", help="a directory")
    arguments = parser.parse_args()
    if arguments.library and not arguments.library.is_file():
        parser.error(f"--library: {arguments.library} is no file")
    return arguments


def find(arguments: argparse.Namespace) -> list[Spec]:
    """Builds what can be started."""
    folder = arguments.build.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    library = (arguments.library or build.build_library(folder / "ringcoll")).resolve()
    stream = build.compile_c(
        "cc", [build.DRIVERS / "verbs_stream.c"], folder / "verbs_stream", ["-libverbs"]
    )
    writes = build.compile_for(
        library, build.INCLUDE, build.DRIVERS / "agent_writes.c", folder / "agent_writes"
    )
    command = [str(writes), "{socket}", "{ranks}"]
    version = peers.version_of_checkout()
    by = {name: {"RINGCOLL_TRANSPORT": name} for name in ("verbs", "tcp")}
    return [
        Spec(STREAM, [str(stream), "{socket}", "{ranks}"], most_ranks=PROCESSES),
        Spec(figures.OURS, command, version, by["verbs"]),
        Spec(TCP, command, version, by["tcp"]),
    ]


def in_guest(arguments: argparse.Namespace) -> int:
    """Everything is built here: the guest's processors are emulated."""
    rounds.progress("build")
    find(arguments)
    library = arguments.library or arguments.build / "ringcoll/libringcoll.so"
    arguments.output.mkdir(parents=True, exist_ok=True)
    output = str(arguments.output.resolve())
    guest = [str(build.CHECKOUT / "ci/rdma-vm"), "--cpus=2", "--memory=4096", "--timeout=1200"]
    inside = [sys.executable, str(Path(__file__).resolve()), "--here", f"--library={library}"]
    inside += [f"--rounds={arguments.rounds}", f"--visit={arguments.visit}", f"--output={output}"]
    inside += [f"--build={arguments.build.resolve()}"]
    return subprocess.run([*guest, f"--out={output}", "--", *inside], check=False).returncode


def note_owner(results: report.Results, name: str, job: Job) -> None:
    """What the owner's process used while the other one read and wrote its memory."""
    answers = job.ask("describe", "described")
    writer, owner = (json.loads(" ".join(words)) for words in answers)
    gib = owner["bytes"] / (1 << 30)
    for what in ("read", "write"):
        results.conditions[f"{name}, one {what}s, the other owns"] = (
            f"{writer['bytes'] / writer[f'{what}_s'] / 1e6:.0f} MB/s; processor time a GiB: "
            f"owner {owner[f'{what}_cpu_s'] / gib:.2f} s, "
            f"the other {writer[f'{what}_cpu_s'] / gib:.2f} s"
        )
    results.conditions[f"{name}, bytes that the owner's thread served"] = str(
        owner["stats"]["answered"]
    )


def measure(specs: list[Spec], arguments: argparse.Namespace, results: report.Results) -> None:
    jobs = rounds.start_jobs(specs, PROCESSES, arguments.build / "logs", results)
    try:
        rounds.run_rounds(
            jobs, PROCESSES, rounds.Plan(SIZES, arguments.rounds, arguments.visit), results
        )
        for name in (figures.OURS, TCP):
            if name in jobs:
                note_owner(results, name, jobs[name])
    finally:
        rounds.close_jobs(jobs)


def main() -> int:
    arguments = parse_arguments()
    end_on_sigterm()
    if not arguments.here:
        return in_guest(arguments)
    specs = find(arguments)
    results = report.Results(
        title="One-sided writes over RDMA",
        ours=figures.OURS,
        method=METHOD,
        targets=TARGETS,
        machine=machine.describe(),
        peers={spec.name: spec.version for spec in specs},
    )
    return program.measure_and_write(
        results,
        lambda: measure(specs, arguments, results),
        arguments.output,
        "one-sided-verbs",
    )


if __name__ == "__main__":
    sys.exit(main())
