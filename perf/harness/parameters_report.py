"""What was measured of parameter tables: tables, targets and a plot."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import figures, mxnet_training, report, table_runs
from .checks import Check
from .figures import KIB, MIB, OURS
from .findings import Findings
from .mxnet_training import Training
from .places import TARGET_RATE
from .table_runs import (
    APART,
    DENSE,
    MXNET,
    MXNET_OURS,
    PULL,
    PUSH,
    PUSH_PULL,
    RDMA,
    ROW_BYTES,
    SPARSE,
    Calls,
)

LEAST_COUNTED = MIB  # a smaller call takes less processor time than what is around it
LEAST_OF_WIRE = 0.95
FROM_BYTES = 16 * MIB  # on the wire
LEAST_SCALED = 0.9  # of N times the load of one server
LEAST_OVER_IP = 1.3


@dataclass(frozen=True)
class _Fast:
    """A time on one host that is not to be exceeded."""

    kind: str
    ways: tuple[str, ...]
    size: int
    most_s: float

    def check(self, calls: list[Calls]) -> Check:
        size = figures.format_size(self.size)
        what = f"{self.size // ROW_BYTES} rows" if self.kind == SPARSE else size
        ways = " and ".join(self.ways)
        text = f"one host, {what}: {ways} at most {figures.format_seconds(self.most_s)}"
        check = Check(text, unit="of it")
        for one in calls:
            alone = (one.place.rate, one.place.servers, one.place.workers) == ("", 1, 1)
            seconds = one.seconds(OURS, self.size)
            if alone and one.kind == self.kind and one.way in self.ways and seconds:
                check.note(one.way, seconds / self.most_s, seconds <= self.most_s)
        return check


_FAST = (
    _Fast(SPARSE, (PUSH, PULL, PUSH_PULL), 64 * ROW_BYTES, 10e-6),
    _Fast(DENSE, (PUSH_PULL,), 16 * KIB, 20e-6),
    _Fast(DENSE, (PUSH_PULL,), 64 * MIB, 60e-3),
)


@dataclass
class Results(Findings):
    calls: list[Calls] = field(default_factory=list)
    trainings: list[Training] = field(default_factory=list)

    @property
    def rounds(self) -> bool:
        """Whether anything was measured."""
        return any(one.results.rounds for one in [*self.calls, *self.trainings])

    def checks(self) -> list[Check]:
        fast = [target.check(self.calls) for target in _FAST]
        return [*fast, _of_wire(self.calls), _of_rdma(self.calls), _of_scale(self.calls)]


def _of_wire(calls: list[Calls]) -> Check:
    check = Check(f"hosts at 1 Gb/s, from 16 MiB: at least {LEAST_OF_WIRE:.0%} of the wire")
    for one in calls:
        if one.place.rate != TARGET_RATE or one.way == PUSH_PULL:
            continue
        for size in one.sizes:
            part = one.part_of_wire(OURS, size) if size >= FROM_BYTES else None
            where = f"{one.what}, {one.label(size)}, {one.place.shape}"
            check.note(where, part, part is not None and part >= LEAST_OF_WIRE)
    return check


def _of_rdma(calls: list[Calls]) -> Check:
    text = f"RDMA at least {LEAST_OVER_IP} times as fast as TCP on the same device"
    check = Check(text, unit="times")
    for one in calls:
        for size in one.sizes:
            ratio = one.ratio(APART, size, to=RDMA)
            if ratio is not None:
                check.note(f"{one.what}, {one.label(size)}", ratio, ratio >= LEAST_OVER_IP)
    return check


def _of_scale(calls: list[Calls]) -> Check:
    text = f"N servers on N hosts: at least {LEAST_SCALED} N times the load of one"
    check = Check(text, unit="of N times")
    for one in calls:
        servers = one.place.servers
        if not one.place.rate or servers == 1 or servers != one.place.workers:
            continue
        for single in calls:
            pair = (single.place.servers, single.place.workers, single.rate, single.what)
            if pair != (1, 1, one.rate, one.what):
                continue
            for size in [size for size in one.sizes if size >= FROM_BYTES]:
                load, of_one = one.bytes_s(OURS, size), single.bytes_s(OURS, size)
                if load and of_one:
                    part = load / of_one / servers
                    where = f"{one.what}, {one.label(size)}, {one.place}"
                    check.note(where, part, part >= LEAST_SCALED)
    return check


# --- Tables ---


def _cell(one: Calls, peer: str, size: int) -> str:
    seconds = one.seconds(peer, size)
    if seconds is None:
        return "–"
    words = [figures.format_seconds(seconds)]
    part = one.part_of_wire(peer, size)
    if size >= LEAST_COUNTED and part is not None:
        words.append(f"{part:.1%}")
    ratio = one.ratio(peer, size) if peer != OURS else None
    text = ", ".join(words)
    return text if ratio is None else f"{text} ({ratio:.2f})"


def _times(one: Calls) -> str:
    peers = one.peers()
    rows = []
    for size in one.sizes:
        wire = [figures.format_seconds(one.wire_s(size))] if one.rate else []
        rows.append([one.label(size), *wire, *(_cell(one, peer, size) for peer in peers)])
    return report.table(["", *(["wire"] if one.rate else []), *peers], rows)


def _processors(one: Calls) -> str:
    peers = one.peers()
    rows = []
    for size in [size for size in one.sizes if size >= LEAST_COUNTED]:
        cells = []
        for peer in peers:
            spent = one.sides_s_a_gib(peer, size)
            cells.append(f"{spent[0]:.2f} + {spent[1]:.2f}" if spent else "–")
        rows.append([one.label(size), *cells])
    return report.table(["", *peers], rows) if rows else ""


def _side_by_side(title: str, calls: list[Calls], their: str, our: str) -> list[str]:
    """Two peers at all sizes and places."""
    rows = []
    for one in calls:
        for size in one.sizes:
            theirs, ours = one.seconds(their, size), one.seconds(our, size)
            ratio = one.ratio(their, size, to=our)
            if theirs is None or ours is None:
                continue
            cells = [figures.format_seconds(seconds) for seconds in (theirs, ours)]
            factor = "–" if ratio is None else f"{ratio:.2f}"
            rows.append([f"{one.place}, {one.what}, {one.label(size)}", *cells, factor])
    head = ["", their, our, f"{their} / {our}"]
    return [f"## {title}", report.table(head, rows)] if rows else []


def _of_training(trainings: list[Training]) -> list[str]:
    measured = [one for one in trainings if one.results.rounds]
    if not measured:
        return []
    rate = measured[0].rate
    title = f"## MXNet's store and ringcoll's: images a second in training, hosts at {rate}"
    return [title, mxnet_training.table(measured)]


def to_markdown(results: Results) -> str:
    parts = [f"# {results.title}", results.method, report.properties(results)]
    for one in [one for one in results.calls if one.results.rounds]:
        parts += [f"## {one.what}, {one.place}", _times(one)]
        if processors := _processors(one):
            parts += ["Processor seconds a GiB, of a worker + of the servers:", processors]
    title = "MXNet's store and ringcoll's: communication"  # both from MXNet's programs
    parts += _side_by_side(title, results.calls, MXNET, MXNET_OURS)
    parts += _side_by_side("IP and RDMA", results.calls, APART, RDMA)
    parts += _of_training(results.trainings)
    rows = [row for check in results.checks() for row in check.rows()]
    parts += ["## Targets", report.table(["target", "where", "measured", ""], rows)]
    parts += report.not_measured(results.missing, results.failures)
    return "\n\n".join(parts) + "\n"


# --- Data ---


def to_json(results: Results) -> str:
    document = results.document()
    document["calls"] = [cell for one in results.calls for cell in table_runs.document(one)]
    document["idle_cores"] = {
        f"{one.place}: {job}": cores
        for one in results.calls
        for job, cores in one.results.idle.items()
    }
    document["training"] = [
        cell for one in results.trainings for cell in mxnet_training.document(one)
    ]
    document["targets"] = [check.document() for check in results.checks()]
    return json.dumps(document, indent=1) + "\n"


# --- Plot ---


def plot(results: Results, path: Path) -> None:
    """A panel for each place, kind and way, with times by size, and one for training."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = results.title  # the same ids each time
    calls = [one for one in results.calls if one.results.rounds]
    trainings = [one for one in results.trainings if one.results.rounds]
    count = len(calls) + bool(trainings)
    columns = min(3, count)
    rows = -(-count // columns)
    size = (6.5 * columns, 5 * rows)
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False)
    panels = list(axes.flat)
    for axis, one in zip(panels, calls, strict=False):
        _draw_calls(axis, one)
    if trainings:
        _draw_training(panels[len(calls)], trainings)
    for axis in panels[count:]:
        axis.remove()
    figure.suptitle(f"{results.title}: {results.machine['cpu']}")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _draw_calls(axis: Any, one: Calls) -> None:
    for peer in one.peers():
        times = [(size, one.seconds(peer, size)) for size in one.sizes]
        points = [(size, seconds) for size, seconds in times if seconds]
        if points:
            style = {"linewidth": 2.5, "color": "black"} if peer == OURS else {}
            axis.plot(*zip(*points, strict=True), marker="o", markersize=3, label=peer, **style)
    if one.rate:
        wire = [one.wire_s(size) for size in one.sizes]
        axis.plot(one.sizes, wire, linestyle="--", color="grey", label="wire")
    axis.set(xscale="log", yscale="log", xlabel="bytes", ylabel="seconds")
    axis.set_title(f"{one.what}, {one.place}", fontsize="medium")
    axis.set_xscale("log", base=2)
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")


def _draw_training(axis: Any, trainings: list[Training]) -> None:
    for model in dict.fromkeys(one.model for one in trainings):
        for store in mxnet_training.STORES:
            rates = [(o.hosts, o.images_s(store)) for o in trainings if o.model == model]
            points = [(hosts, rate) for hosts, rate in rates if rate]
            if points:
                axis.plot(*zip(*points, strict=True), marker="o", label=f"{model}, {store}")
    axis.set(title="training", xlabel="hosts", ylabel="images a second")
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")
