#!/usr/bin/env python3
"""Times groups of ranks and calls in flight: what a split and a shrink cost, 16 asynchronous
allreduces against one as long, and two groups at once against one.

On this host by shared memory and by tcp and, as root, between emulated hosts; with --before beside
another build of ringcoll. Writes perf/results/groups-<machine>.json and .md. perf/README.md says
what is measured and how.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from harness import (
    build,
    distance,
    figures,
    groups_report,
    in_flight,
    machine,
    peers,
    program,
    report,
    rounds,
    shrinks,
    splits,
)
from harness.build import CHECKOUT, PERF
from harness.figures import OURS
from harness.groups_report import InFlight, Results, ShrinksFound, SplitsFound
from harness.in_flight import Place
from harness.jobs import Job, JobError, end_on_sigterm
from harness.peers import BEFORE
from harness.shapes import Case, Shape, bits_per_second
from support import hosts

METHOD = (
    "Splits: a job of that many ranks on one host; its first ranks are split off so often, and "
    "all are kept. Times are of the slowest rank, from a barrier on: the median over the groups "
    "of a job, and over rounds. First use: an alltoall, which needs every pair. Threads and "
    "descriptors are what a process has more than before the first split: after all splits, when "
    "each group was used, when each had an asynchronous call, and when all were destroyed; KiB "
    "the same of memory: resident, and its proportional share, where a page of several ranks "
    "counts once; of the rank that has most. A group not used: of the first, or on the average, "
    "whichever is more."
    "\n\n"
    "Shrinks: a job of that many ranks on one host, all in calls; the last rank is killed. "
    "Noticed: from there to the error of the rank that has it last. Shrink: from a rank's error to "
    "the end of its shrink, of the rank that takes longest. The median over rounds."
    "\n\n"
    "Calls in flight: allreduce of float32, sum, out of place, of one vector: in one call, or in "
    "16 of a sixteenth each, on the job's communicator: run one after the other (in turn), or all "
    "started and then all waited for (in flight); or in flight on a group of all ranks, or on two "
    "in turn. A time is that of the whole vector, of its slowest rank, and so of the slower "
    "group: of a batch of calls after a barrier, divided by the calls; the median batch of a "
    "visit, the median over rounds. Every round visits each way in turn, the others idle. A ratio "
    "is the median over rounds. Speed of each, of half: the time of the one group with 16 calls "
    "over that of the slower of two with 8 each. Links between emulated hosts are shaped, but for "
    "what their buckets let pass at once (256 KB)."
)
VERSION_OF = """
import ctypes, sys
version = ctypes.CDLL(sys.argv[1]).ringcoll_version
version.restype = ctypes.c_char_p
print(version().decode())
"""
TRANSPORTS = ("shm", "tcp")
RANKS = (2, 4)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--quick", action="store_true", help="2 ranks, one size, two rounds: a smoke test")
    add("--transports", default=",".join(TRANSPORTS), help="on this host; default %(default)s")
    add("--hosts", help="shapes of emulated hosts; default 2x1,2x2")
    add("--rate", default="1gbit", help="of the links of emulated hosts; default %(default)s")
    add("--no-splits", action="store_true", help="neither splits nor shrinks")
    add("--rounds", type=int, help="default 9")
    add("--visit", type=float, help="seconds of one visit, default 0.2")
    program.add_libraries(parser)
    add("--build", type=Path, default=CHECKOUT / "build/perf")
    add("--output", type=Path, default=PERF / "results", help="a directory")
    arguments = parser.parse_args()
    arguments.rounds = arguments.rounds or (2 if arguments.quick else 9)
    arguments.visit = arguments.visit or (0.02 if arguments.quick else 0.2)
    try:
        program.check_libraries(arguments)
        arguments.transports = transports(arguments.transports)
        arguments.places = places(arguments)
    except ValueError as error:
        parser.error(str(error))
    return arguments


def transports(text: str) -> list[str]:
    named = [word for word in text.split(",") if word]
    for word in named:
        if word not in TRANSPORTS:
            raise ValueError(f'--transports: "{word}" is none of {", ".join(TRANSPORTS)}')
    return named


def places(arguments: argparse.Namespace) -> list[Place]:
    bits_per_second(arguments.rate)
    quick = arguments.quick
    named = arguments.hosts if arguments.hosts is not None else "2x1" if quick else "2x1,2x2"
    shapes = [Shape.parse(word) for word in named.split(",") if word]
    ranks = RANKS[:1] if quick else RANKS
    found = [Place(n, transport) for n in ranks for transport in arguments.transports]
    return found + [Place(s.size, case=Case(s, arguments.rate, ())) for s in shapes]


class Library:
    """A libringcoll.so, and the drivers made for it."""

    def __init__(self, name: str, path: Path, include: Path, directory: Path) -> None:
        self.name, self.path = name, path.resolve()
        self.environment = {"LD_LIBRARY_PATH": str(self.path.parent), "RINGCOLL_LOG": "warning"}
        # In a process of its own: two builds of a library are not loaded into one.
        self.version = peers.version_of(sys.executable, "-c", VERSION_OF, str(self.path))
        self._include, self._directory = include, directory
        self.splits = self._driver("splits")
        can_shrink = shrinks.NEEDED in (include / "ringcoll/ringcoll.h").read_text()
        self.shrink = self._driver("shrink") if can_shrink else None
        self.in_flight = self._driver("in_flight")

    def _driver(self, what: str) -> Path:
        program = self._directory / f"{self.name.replace(' ', '_')}_{what}"
        source = build.DRIVERS / f"ringcoll_{what}.c"
        return build.compile_for(self.path, self._include, source, program)


def libraries(arguments: argparse.Namespace) -> list[Library]:
    directory = arguments.build.resolve()
    path = arguments.library or build.build_library(directory / "ringcoll")
    found = [Library(OURS, path, build.INCLUDE, directory)]
    if arguments.before:
        include = program.include_of(arguments.before_header)
        found.append(Library(BEFORE, arguments.before, include, directory))
    return found


def measure_splits(
    case: splits.Splits, named: list[Library], arguments: argparse.Namespace, results: Results
) -> None:
    one = SplitsFound(case, {library.name: [] for library in named})
    results.splits.append(one)
    left = list(named)
    for turn in range(arguments.rounds):
        for library in rounds.rotated(left, turn):
            try:
                found = splits.measure(library.splits, case, library.environment)
            except JobError as error:
                results.failures.append(f"{library.name}: {error}")
                left.remove(library)
            else:
                one.rounds[library.name].append(found)
    middles = ", ".join(
        f"{name} {figures.format_seconds(seconds)}"
        for name in one.rounds
        if (seconds := one.middle(name, splits.split_s))
    )
    rounds.progress(f"  {case}: {middles or 'failed'}")


def measure_shrinks(
    case: shrinks.Shrinks, named: list[Library], arguments: argparse.Namespace, results: Results
) -> None:
    drivers = {library: library.shrink for library in named if library.shrink}
    one = ShrinksFound(case, {library.name: [] for library in drivers})
    results.shrinks.append(one)
    for turn in range(arguments.rounds):
        for library in rounds.rotated(list(drivers), turn):
            try:
                found = shrinks.measure(drivers[library], case, library.environment)
            except JobError as error:
                results.failures.append(f"{library.name}: {error}")
                del drivers[library]
            else:
                one.rounds[library.name].append(found)
    middles = ", ".join(
        f"{name} {figures.format_seconds(seconds)}"
        for name in one.rounds
        if (seconds := one.middle(name, "shrink_s"))
    )
    rounds.progress(f"  {case}: {middles or 'failed'}")


def measure_in_flight(
    place: Place, named: list[Library], arguments: argparse.Namespace, results: Results
) -> None:
    rounds.progress(str(place))
    one = InFlight(place, report.Results(str(place), OURS, "", [], {"cpu": ""}, {}))
    results.in_flight.append(one)
    specs = [in_flight.spec_of(lib.name, lib.in_flight, lib.environment, place) for lib in named]
    sizes = in_flight.SIZES[:1] if arguments.quick else in_flight.SIZES
    plan = rounds.Plan(sizes, arguments.rounds, arguments.visit)
    one.round_trips.append(distance.describe(arguments.build))
    with in_flight.placed(specs, place) as there:
        started = rounds.start_jobs(there, place.ranks, arguments.build / "logs", one.results)
        try:
            rounds.measure_idle(started, place.ranks, one.results)
            rounds.run_rounds(in_flight.ways_of(started), place.ranks, plan, one.results)
        finally:
            rounds.close_jobs({name: job for name, job in started.items() if isinstance(job, Job)})
    one.round_trips.append(distance.describe(arguments.build))
    results.failures += [f"{place}: {failure}" for failure in one.results.failures]


def measure(arguments: argparse.Namespace, results: Results) -> None:
    named = libraries(arguments)
    results.peers |= {library.name: library.version for library in named}
    round_trip = "round trip of a cache line between cores"
    results.conditions[f"{round_trip}, before"] = distance.describe(arguments.build)
    cases = splits.quick_cases if arguments.quick else splits.cases
    for case in [] if arguments.no_splits else cases(arguments.transports):
        measure_splits(case, named, arguments, results)
    lost = shrinks.quick_cases if arguments.quick else shrinks.cases
    for shrink in [] if arguments.no_splits else lost(arguments.transports):
        measure_shrinks(shrink, named, arguments, results)
    for place in arguments.places:
        if place.case and (reason := hosts.missing()):
            results.missing[str(place)] = reason
            continue
        measure_in_flight(place, named, arguments, results)
    results.conditions[f"{round_trip}, after"] = distance.describe(arguments.build)


def main() -> int:
    arguments = parse_arguments()
    end_on_sigterm()
    arguments.build.mkdir(parents=True, exist_ok=True)
    results = Results("Groups and calls in flight", METHOD, machine.describe())
    try:
        return program.measure_and_write(
            results,
            lambda: measure(arguments, results),
            arguments.output,
            "groups",
            quick=arguments.quick,
            with_plot=False,
            form=groups_report,
        )
    except build.BuildError as error:
        print(f"perf/groups.py: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
