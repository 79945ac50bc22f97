#!/usr/bin/env python3
"""Times the deltas between two versions of a bfloat16 tensor, and checksums, on one thread.

Beside them: the rate at which memory is read, a copy, and NumPy's comparison.
Writes perf/results/delta-<machine>.json and .md. perf/README.md says what is measured and how.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from harness import build, deltas, machine, peers, program
from harness.figures import MIB

METHOD = """\
Two versions of one tensor of bfloat16 in memory of this process, which was written before, so
that no page is missing. They differ at random in about a share of their elements. One thread
calls the C functions of libringcoll.so. Each round does everything once, one share after the
other; a time is the median over rounds. Rates count the bytes of both versions where both are
read. Reading is the sum of both versions, compiled for this processor. The ratio is the median
over rounds of the time to read both versions over the time of delta_make in the same round. Each
delta is applied, and what comes out is compared with the newer version."""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("--quick", action="store_true", help="16 MiB, two rounds: a smoke test")
    add("--mib", type=int, default=1024, help="of one version; default %(default)s")
    add("--rounds", type=int, default=7, help="default %(default)s")
    add("--library", type=Path, help="a libringcoll.so instead of a build of this")
    add("--build", type=Path, default=build.CHECKOUT / "build/perf")
    add("--output", type=Path, default=build.PERF / "results", help="a directory")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.mib, arguments.rounds = 16, 2
    return arguments


def main() -> int:
    arguments = parse_arguments()
    folder = arguments.build.resolve()
    results = deltas.Results("Deltas and checksums", METHOD, machine.describe())
    results.peers["ringcoll"] = peers.version_of_checkout()
    results.peers["NumPy"] = np.__version__

    def measure() -> None:
        library = arguments.library or build.build_library(folder / "ringcoll")
        bench = deltas.Bench(library.resolve(), folder, arguments.mib * MIB)
        deltas.measure(bench, arguments.rounds, results)

    return program.measure_and_write(
        results,
        measure,
        arguments.output,
        "delta",
        quick=arguments.quick,
        with_plot=False,
        form=deltas,
    )


if __name__ == "__main__":
    sys.exit(main())
