"""What the programs that measure collectives on one host have in common: their arguments, the peers
that they find, and rounds that know how far apart the cores are."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
from collections.abc import Collection, Iterator
from pathlib import Path

from . import distance, figures, machine, peers, program, report, rounds
from .build import CHECKOUT, PERF
from .jobs import Spec

# Both buffers of every rank of every job are there at once; leave the rest of the memory alone.
MEMORY_SHARE = 0.7

# What a report's "How" says of such rounds.
HOW_ROUNDS = (
    "A time is that of a batch of calls back to back after a barrier, of its slowest rank, divided "
    "by the calls; the median batch of a visit; the median over rounds. Every round visits each "
    "peer in turn, the others idle. A ratio is the median over rounds of a peer's time divided by "
    "ringcoll's in the same round: above 1, ringcoll is faster."
)
HOW_FAR = (
    "Where there are two CPUs, the round trip of a cache line between them is taken before and "
    "after each visit (one core, near, far); visits in which that changed do not count, and each "
    "state has its own tables."
)

HOW_WRITTEN = (
    "Before each call every rank writes what it puts in, as training does, whose gradients are new "
    "in each step; that is not part of the time."
)


def add_arguments(parser: argparse.ArgumentParser, ranks: str, names: Collection[str]) -> None:
    """`ranks`: by default; `names`: of the peers that there are."""
    add = parser.add_argument
    add("--quick", action="store_true", help="few sizes, two rounds: a smoke test")
    add("--sizes", help="comma-separated, such as 4,64KiB,16M")
    add("--ranks", default=ranks, help="default %(default)s")
    add("--peers", help=f"comma-separated, of: {', '.join(names)}")
    add("--rounds", type=int, help="default 9")
    add("--visit", type=float, help="seconds of one visit, default 0.1")
    add("--passes", type=int, default=3, help="over all sizes; default 3")
    add("--minutes", type=float, default=12, help="fewer rounds rather than longer")
    add("--write-inputs", action="store_true", help="before each call, as training does")
    program.add_libraries(parser)
    add("--intel-prefix", type=Path, help="where Intel MPI, and oneCCL, are")
    add("--install-peers", action="store_true", help="get all MPIs from PyPI")
    add("--pin", action="store_true", help="pin the ranks of ringcoll (and gloo) too")
    add("--build", type=Path, default=CHECKOUT / "build/perf")
    add("--output", type=Path, default=PERF / "results", help="a directory")


def complete(
    arguments: argparse.Namespace, sizes: list[int], quick: str, names: Collection[str]
) -> None:
    """Makes lists of the texts, and sets what was not given. `sizes`: by default; `quick`: with
    --quick; `names`: as above. Raises ValueError."""
    arguments.rounds = arguments.rounds or (2 if arguments.quick else 9)
    arguments.visit = arguments.visit or (0.02 if arguments.quick else 0.1)
    program.check_libraries(arguments)
    named = arguments.sizes or (quick if arguments.quick else "")
    found = [figures.parse_size(s) for s in named.split(",") if s]
    arguments.sizes = found or sizes
    arguments.ranks = [int(n) for n in arguments.ranks.split(",")]
    arguments.peers = listed("--peers", arguments.peers, names) if arguments.peers else None


def listed(option: str, text: str, names: Collection[str]) -> list[str]:
    """The words of an option's text. Raises ValueError for one that is no name."""
    words = [word for word in text.split(",") if word]
    for word in words:
        if word not in names:
            raise ValueError(f'{option}: "{word}" is none of {", ".join(names)}')
    return words


def find_peers(
    arguments: argparse.Namespace, names: list[str] | None
) -> tuple[list[Spec], dict[str, str]]:
    """As peers.find does."""
    options = peers.Options(
        build=arguments.build.resolve(),
        library=arguments.library and arguments.library.resolve(),
        intel_prefix=arguments.intel_prefix and arguments.intel_prefix.resolve(),
        pin=arguments.pin,
        before=arguments.before and arguments.before.resolve(),
        before_include=program.include_of(arguments.before_header),
    )
    if arguments.install_peers:
        rounds.progress("install the MPIs and oneCCL into build/perf/peers*")
        peers.install_all(options.build)
    rounds.progress("build")
    specs, missing = peers.find(options, names)
    if arguments.write_inputs:
        writes = {"PERF_WRITES": "1"}
        specs = [dataclasses.replace(s, environment=s.environment | writes) for s in specs]
    return specs, missing


def method(text: str, arguments: argparse.Namespace) -> str:
    """How it was measured, with the arguments that change it."""
    return f"{text} {HOW_WRITTEN}" if arguments.write_inputs else text


def name_of(measurement: str, arguments: argparse.Namespace) -> str:
    """Of its results."""
    return f"{measurement}-written" if arguments.write_inputs else measurement


def fitting(sizes: list[int], ranks: int, jobs: int, results: report.Results) -> list[int]:
    """The sizes whose buffers fit into memory, all jobs' together."""
    room = MEMORY_SHARE * machine.available_bytes()
    kept = [size for size in sizes if 2 * size * ranks * jobs < room]
    for size in sorted(set(sizes) - set(kept)):
        results.failures.append(f"{ranks} ranks, {figures.format_size(size)}: too little memory")
    return kept


@contextlib.contextmanager
def started(
    specs: list[Spec], ranks: int, arguments: argparse.Namespace, results: report.Results
) -> Iterator[rounds.Jobs]:
    """The peers' jobs, which are ended afterwards."""
    jobs = rounds.start_jobs(specs, ranks, arguments.build / "logs", results)
    try:
        rounds.measure_idle(jobs, ranks, results)
        yield jobs
    finally:
        rounds.close_jobs(jobs)


def plan(arguments: argparse.Namespace, sizes: list[int], parts: int) -> rounds.Plan:
    """`parts`: measurements like this that have the program's minutes together."""
    limit = 60 * arguments.minutes / (max(1, len(sizes)) * parts)
    made = rounds.Plan(sizes, arguments.rounds, arguments.visit, limit, passes=arguments.passes)
    made.take_distance = distance.taker(arguments.build)
    return made
