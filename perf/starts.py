#!/usr/bin/env python3
"""Starts meshes of many ranks, threads of a few processes, and shows what that takes: time,
descriptors and memory of rank 0 and of the others, requests and bytes at the store.

By tcp over loopback and by the loopback transport, with tcp://, file:// and Horovod's rendezvous
server. Writes perf/results/starts-<machine>.json and .md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from harness import build, machine, program, starts, starts_report
from harness.jobs import end_on_sigterm
from harness.rounds import progress
from harness.starts import COUNTING, Case, StartError, Tools
from harness.starts_report import Counted, Results

METHOD = (
    "Ranks are threads: with the loopback transport of one process, else rank 0 has a process and "
    "the others share three; all are on this machine. Time: from the moment at which all are told "
    "to create their communicators to that at which the last one has, with all that belongs to it "
    "(exchanges, authenticated lifelines, the measuring of links); the median of the starts. "
    "Processor time is that of all ranks, without the server's. Descriptors and memory: what a "
    "rank's process has more of than before, by its ranks; of rank 0 / of the others. Requests and "
    "bytes are those at Horovod's server and, in runs that are not timed, at a store that counts "
    "and speaks as it does. Exchanges alone: as many bytes as the rank of the largest mesh says "
    "that says most, here random ones, which cannot be compressed; without meshes, over a store in "
    "memory that counts."
)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("--quick", action="store_true", help="16 ranks, once: a smoke test")
    add("--ranks", default="64,256,1024", help="default %(default)s")
    add("--alone", default="4096", help="ranks of exchanges without meshes; default %(default)s")
    add("--stores", default=",".join(starts.STORES), help="default %(default)s")
    add("--transports", default=",".join(starts.TRANSPORTS), help="default %(default)s")
    add("--rounds", type=int, default=3, help="starts of each; default %(default)s")
    add("--library", type=Path, help="a libringcoll.so instead of a build of this")
    add(
        "--objects", type=Path, help="the folder that it was built in, for exchanges without meshes"
    )
    add("--build", type=Path, default=build.CHECKOUT / "build/perf")
    add("--output", type=Path, default=build.PERF / "results", help="a directory")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.ranks, arguments.alone, arguments.rounds = "16", "64", 1
    return arguments


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",") if word]


def cases(arguments: argparse.Namespace, results: Results) -> list[Case]:
    stores = arguments.stores.split(",")
    if "horovod" in stores and not starts.has_horovod():
        stores.remove("horovod")
        results.missing["horovod"] = f"Horovod is not installed for {sys.executable}"
    return [
        Case(ranks, transport, store)
        for ranks in numbers(arguments.ranks)
        for transport in arguments.transports.split(",")
        for store in [*stores, COUNTING]
    ]


def measure(arguments: argparse.Namespace, results: Results) -> None:
    tools = Tools(arguments.build.resolve(), arguments.library, arguments.objects)
    for case in cases(arguments, results):
        for _ in range(1 if case.store == COUNTING else arguments.rounds):
            try:
                found = starts.start(case, tools)
            except StartError as error:
                results.failures.append(f"{case}: {error}")
                progress(f"  NOT MEASURED: {case}: {error}")
                break
            results.rounds.setdefault(case, []).append(found)
            progress(f"  {case}: {found.seconds:.2f} s, processor {found.processor_s:.1f} s")
    count_alone(arguments, tools, results)


def count_alone(arguments: argparse.Namespace, tools: Tools, results: Results) -> None:
    """With as many bytes as the rank of the largest mesh said that had most to say."""
    largest = max(
        (case for case in results.rounds if case.store == COUNTING),
        key=lambda case: case.ranks,
        default=None,
    )
    if largest is None or not tools.has_objects():
        return
    records = results.rounds[largest][-1].at_store["records"]
    try:
        [empty] = starts.count_exchange(tools, 2, [0])["records"]
        said = [bytes - empty for bytes in records]
        for ranks in [largest.ranks, *numbers(arguments.alone)]:
            counts = starts.count_exchange(tools, ranks, said)
            results.counted.append(Counted(ranks, said, counts))
    except (StartError, build.BuildError) as error:
        results.failures.append(f"exchanges alone: {error}")


def main() -> int:
    # This directory has a horovod.py, which must not be taken for the package.
    sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != build.PERF]
    arguments = parse_arguments()
    end_on_sigterm()
    results = Results("Starts of many ranks", METHOD, machine.describe())
    results.peers["ringcoll"] = str(arguments.library or "of this checkout")
    return program.measure_and_write(
        results,
        lambda: measure(arguments, results),
        arguments.output,
        "starts",
        quick=arguments.quick,
        with_plot=False,
        form=starts_report,
    )


if __name__ == "__main__":
    sys.exit(main())
