#!/usr/bin/env python3
"""Times pushes and pulls of parameter tables beside MXNet's store, TensorFlow's gRPC parameter
server, torch's RPC and an allreduce; memcpy and the wire are the limits. Also trains with MXNet
over its own store and over ringcoll's.

On one host, and between hosts that are namespaces joined by links of a chosen rate (these need
root). Writes perf/results/parameters-<machine>.json, .md and .svg. perf/README.md says what is
measured and how.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness import (
    build,
    figures,
    machine,
    mxnet_training,
    one_host,
    parameters_report,
    program,
    rounds,
    table_runs,
)
from harness.figures import MIB
from harness.jobs import JobError, end_on_sigterm
from harness.mxnet_training import MODELS
from harness.parameters_report import Results
from harness.places import ONE_HOST, Pythons
from harness.table_runs import DENSE, KINDS, PEERS, ROW_BYTES, SPARSE, WAYS, Place, Settings
from support import hosts

METHOD = """\
Servers and workers are processes with one thread that calls, by each library's Python interface. A
worker pushes to a table, pulls from it, or does both. A time is that of a batch of calls, back to
back and one at a time, divided by the calls: the slowest worker's, the median batch of a visit, the
median over rounds. Every round visits each library in turn. Meanwhile the others idle, and those
whose threads poll are stopped; so a visit begins with a call that does not count. In brackets: the
median over rounds of another's time over that of `ringcoll` in the same round; above 1, ringcoll is
faster. What a table has is compared with what was pushed once for each size and way.

Sparse tables have rows of 64 floats. The ids of a call ascend, and are a quarter of those that the
table has, or all of a million. `ringcoll`: workers are guests of a store whose ranks are the
servers; a push is a sum. `1 backup`: a push is acknowledged when two servers have it. `TCP`,
`RDMA`: on one host, all take each other for another host's. `MXNet`: dist_sync, with the same
servers and workers; a worker waits for each call. Sparse keys have SGD in the servers, since
without an optimizer MXNet 1.9.1 stores pushed rows in the wrong place. `MXNet over ringcoll`: the
same program, with the store "ringcoll".
Torch and TensorFlow make new tensors of what they pull, and leave it to their user what is on
which server; that was prepared before. Workers of TensorFlow have variables of their own, and at
most 64 MiB in one call. allreduce: ringcoll's, of the same bytes, between the workers or, if there
is one alone, with the server. memcpy: NumPy's copy in the worker, two for a push and a pull.

Hosts are network namespaces of this machine, which share its processors. Each server and worker has
its own, with a link that is shaped to the rate that is named, in each direction. The wire is the
link that has most bytes to carry, in one direction. Frames have 9000 bytes, and headers, 0.7 % of
them, count as nothing. The shaper passes the first 256 KB after a pause at full speed, so that
sizes up to 1 MiB may be faster than the wire.

In training each host has a server and a worker, and a step of a worker takes 64 images. The
optimizer runs in the servers. The random images stay the same. Shards of `ringcoll` on several
hosts have one backup each, unless `without backup` is said; those of MXNet have none. In brackets:
images a second in those with MXNet's store."""
HOST, HOSTS, SHAPES, TRAINING = "host", "hosts", "shapes", "training"
PARTS = {
    HOST: "one server and one worker on one host",
    HOSTS: "the same on two hosts, at each of --rates",
    SHAPES: "more servers and workers, on one host and at the first of --rates",
    TRAINING: "training by MXNet, at the first of --rates",
}
NEED_HOSTS = (HOSTS, TRAINING)
# With more servers and workers, unless sizes are named.
FEW = {SPARSE: [64 * ROW_BYTES, 131_072 * ROW_BYTES], DENSE: [16 << 10, 16 * MIB]}


def parse_arguments() -> argparse.Namespace:
    parts = "; ".join(f"{name}: {text}" for name, text in PARTS.items())
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0], epilog=f"Parts: {parts}."
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="few sizes, two rounds: a smoke test")
    add("--only", default=",".join(PARTS), help="parts; default %(default)s")
    add("--peers", default=",".join(PEERS), help="default %(default)s")
    add("--ways", default=",".join(WAYS), help="default %(default)s")
    add("--rates", default="1gbit,10gbit", help="of links; default %(default)s")
    add("--sizes", help="of dense tables, such as 4,64KiB,16M; default 4 B to 256 MiB")
    add("--rows", help="of sparse tables, such as 64,1000; default 64 to a million")
    add("--most", default="64M", help="bytes of a call between hosts; default %(default)s")
    add("--shapes", default="2x1,1x2,2x2,4x4", help="servers x workers; default %(default)s")
    add("--models", default=",".join(MODELS), help="default %(default)s")
    add("--hosts", default=",".join(map(str, mxnet_training.HOSTS)), help="default %(default)s")
    add("--rounds", type=int, help="default 5")
    add("--visit", type=float, help="seconds of one visit, default 0.1")
    add("--minutes", type=float, default=15, help="fewer rounds rather than longer; 3 are least")
    add("--peers-python", type=Path, help="a Python that has peers which the one in use has not")
    add("--mxnet-python", type=Path, help="a Python that has MXNet, and finds ringcoll")
    add("--build", type=Path, default=build.CHECKOUT / "build/perf")
    add("--name", default="parameters", help="what the files are called; default %(default)s")
    add("--output", type=Path, default=build.PERF / "results", help="a directory")
    arguments = parser.parse_args()
    try:
        _complete(arguments)
    except (ValueError, hosts.HostsError) as error:
        parser.error(str(error))
    return arguments


def _complete(arguments: argparse.Namespace) -> None:
    """Makes lists of the texts, and sets what was not given. Raises ValueError and HostsError."""
    quick = arguments.quick
    arguments.rounds = arguments.rounds or (2 if quick else 5)
    arguments.visit = arguments.visit or (0.02 if quick else 0.1)
    for option, known in (("only", PARTS), ("peers", PEERS), ("ways", WAYS), ("models", MODELS)):
        words = one_host.listed(f"--{option}", getattr(arguments, option), known)
        setattr(arguments, option, words)
    arguments.rates = [word for word in arguments.rates.split(",") if word]
    for rate in arguments.rates:
        hosts.bits_per_second(rate)
    if not arguments.rates:
        raise ValueError("--rates names none")
    arguments.hosts = [int(word) for word in arguments.hosts.split(",")]
    shapes = [word for word in arguments.shapes.split(",") if word]
    arguments.shapes = [table_runs.parse_shape(word) for word in shapes]
    arguments.most = figures.parse_size(arguments.most)
    arguments.tables, arguments.few = _tables(arguments)


def _tables(arguments: argparse.Namespace) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """The sizes with one server and one worker, and those with more. Raises ValueError."""
    dense, rows = table_runs.DENSE_SIZES, table_runs.ROWS
    if arguments.quick:
        dense, rows = table_runs.QUICK_DENSE_SIZES, table_runs.QUICK_ROWS
    few = {} if arguments.quick else dict(FEW)
    if arguments.sizes is not None:
        dense = [figures.parse_size(word) for word in arguments.sizes.split(",") if word]
        few.pop(DENSE, None)
    if arguments.rows is not None:
        rows = [int(word) for word in arguments.rows.split(",") if word]
        few.pop(SPARSE, None)
    tables = {SPARSE: [count * ROW_BYTES for count in rows], DENSE: dense}
    return tables, tables | few


def tables_in(place: Place, arguments: argparse.Namespace) -> dict[str, list[int]]:
    """The sizes that are measured in a place."""
    found: dict[str, list[int]] = arguments.tables if place.ranks == 2 else arguments.few
    most = arguments.most if place.rate else max(max(sizes, default=0) for sizes in found.values())
    return {kind: [size for size in found[kind] if size <= most] for kind in KINDS}


def places_of(arguments: argparse.Namespace) -> list[Place]:
    """Where tables are measured."""
    found = [Place()] if HOST in arguments.only else []
    found += [Place(rate) for rate in arguments.rates if HOSTS in arguments.only]
    if SHAPES in arguments.only:
        rates = [ONE_HOST] if hosts.missing() else [ONE_HOST, arguments.rates[0]]
        found += [Place(rate, *shape) for rate in rates for shape in arguments.shapes]
    return found


def measure(arguments: argparse.Namespace, results: Results) -> None:
    if reason := hosts.missing():
        for part in [part for part in arguments.only if part in NEED_HOSTS]:
            arguments.only.remove(part)
            results.missing[part] = reason
            rounds.progress(f"  without {part}: {reason}")
    places = places_of(arguments)
    models = arguments.models if TRAINING in arguments.only else []
    trainings = [(model, count) for model in models for count in arguments.hosts]
    sizes = sum(len(found) for place in places for found in tables_in(place, arguments).values())
    cells = sizes * len(arguments.ways) + len(trainings)
    settings = Settings(
        Pythons.of(arguments.peers_python, arguments.mxnet_python),
        arguments.peers,
        arguments.ways,
        arguments.rounds,
        arguments.visit,
        60 * arguments.minutes / max(1, cells),
        arguments.build / "logs",
    )

    def note(versions: dict[str, str], missing: dict[str, str]) -> None:
        results.peers |= versions
        for peer in missing.keys() - results.missing.keys():
            rounds.progress(f"  without {peer}: {missing[peer]}")
        results.missing |= missing

    for place in places:
        with _noted(str(place), results):
            for calls in table_runs.measure(place, tables_in(place, arguments), settings, note):
                results.calls.append(calls)
                where = f"{calls.what}, {place}"
                results.failures += [f"{where}: {text}" for text in calls.results.failures]
    for model, count in trainings:
        rate = arguments.rates[0]
        with _noted(f"training of {model} on {count} hosts", results):
            training = mxnet_training.measure(rate, count, model, settings, note)
            results.trainings.append(training)
            where = f"training of {model}, {training.place}"
            results.failures += [f"{where}: {text}" for text in training.results.failures]


@contextmanager
def _noted(what: str, results: Results) -> Iterator[None]:
    """Reports what could not be measured. The rest is measured all the same."""
    try:
        yield
    except (JobError, hosts.HostsError, OSError, subprocess.SubprocessError) as error:
        results.failures.append(f"{what}: {error}")
        rounds.progress(f"  NOT MEASURED: {what}: {error}")


def main() -> int:
    # This directory has a horovod.py, which must not be taken for the package.
    sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != build.PERF]
    arguments = parse_arguments()
    end_on_sigterm()
    (arguments.build / "logs").mkdir(parents=True, exist_ok=True)
    results = Results("Parameter tables", METHOD, machine.describe())
    return program.measure_and_write(
        results,
        lambda: measure(arguments, results),
        arguments.output,
        arguments.name,
        quick=arguments.quick,
        form=parameters_report,
    )


if __name__ == "__main__":
    sys.exit(main())
