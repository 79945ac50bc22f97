"""What was measured on emulated hosts: the tables, what they say of the targets, and plots."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from . import figures, report
from .checks import Check
from .figures import MIB, OURS
from .findings import Findings
from .shapes import UNSHAPED, Case

GIB = 1 << 30
LARGE = 16 * MIB
# Ratios to gloo that are asked for from LARGE at 1 Gb/s, by shape.
OF_GLOO = {"2 × 2": 1.4, "2 × 4": 1.6, "4 × 2": 1.1}


@dataclass
class Table:
    """A case and its times. `rows` and `streams`: ways of ringcoll among results.peers."""

    case: Case
    results: report.Results
    rows: list[str] = field(default_factory=list)
    streams: list[str] = field(default_factory=list)
    without: str = ""  # the way that does not know of the racks, or has one network
    costs: dict[str, Any] = field(default_factory=dict)  # what the job measured of its links
    predicted: dict[tuple[str, int], float] = field(default_factory=dict)  # seconds of row, size

    @property
    def peers(self) -> list[str]:
        ways = {OURS, self.without, *self.rows, *self.streams}
        return [peer for peer in self.results.peers if peer not in ways]

    @property
    def sizes(self) -> list[int]:
        return sorted({size for _, _, size in self.results.rounds})

    def rounds(self, peer: str, size: int) -> list[float | None]:
        return self.results.rounds.get((self.case.shape.size, peer, size), [])

    def seconds(self, peer: str, size: int) -> float | None:
        return figures.middle(self.rounds(peer, size))

    def ratio(self, peer: str, size: int, to: str = OURS) -> float | None:
        """The median over rounds of peer's time over that of `to`."""
        return figures.ratio(self.rounds(peer, size), self.rounds(to, size))

    def best(self, ways: list[str], size: int) -> str | None:
        measured = {way: seconds for way in ways if (seconds := self.seconds(way, size))}
        return min(measured, key=lambda way: measured[way], default=None)

    def regret(self, ways: list[str], size: int) -> float | None:
        """Time as chosen over that of the best of the ways."""
        best = self.best(ways, size)
        return self.ratio(OURS, size, best) if best else None

    def of_predicted(self, row: str, size: int) -> float | None:
        """What ringcoll's price says over what was measured."""
        price, measured = self.predicted.get((row, size)), self.seconds(row, size)
        return price / measured if price and measured else None

    def of_bound(self, size: int, peer: str = OURS) -> float | None:
        bound, seconds = self.case.bound_s(size), self.seconds(peer, size)
        return bound / seconds if bound and seconds else None

    def unevenness(self, size: int, peer: str = OURS) -> float | None:
        """Longest over median call, of at least three."""
        visits = self.results.visits.get((self.case.shape.size, peer, size), [])
        calls = [seconds for visit in visits for seconds in visit.calls_s]
        return max(calls) / median(calls) if len(calls) > 2 else None

    def processor_s_per_gib(self, size: int, peer: str = OURS) -> float | None:
        """Of all ranks, for a GiB of every rank's vector."""
        visits = self.results.visits.get((self.case.shape.size, peer, size), [])
        calls = sum(visit.calls * len(visit.calls_s) for visit in visits)
        spent = sum(visit.processor_s for visit in visits)
        return spent / (calls * size / GIB) if calls else None


@dataclass
class Results(Findings):
    tables: list[Table] = field(default_factory=list)

    @property
    def rounds(self) -> bool:
        """Whether anything was measured."""
        return any(table.results.rounds for table in self.tables)

    def checks(self) -> list[Check]:
        cells = [(table, size) for table in self.tables for size in table.sizes]
        return [check for judge in _JUDGES for check in judge(cells)]


Cells = list[tuple[Table, int]]


def _where(table: Table, size: int) -> str:
    return f"{table.case}, {figures.format_size(size)}"


def _at(rate: str, cells: Cells, least: int = 0) -> Cells:
    return [(t, s) for t, s in cells if t.case.rate == rate and s >= least and t.case.is_plain]


def _least(text: str, cells: Cells, value: Any, least: float) -> Check:
    check = Check(text)
    for table, size in cells:
        found = value(table, size)
        check.note(_where(table, size), found, found is not None and found >= least)
    return check


def _most(text: str, cells: Cells, value: Any, most: float) -> Check:
    check = Check(text)
    for table, size in cells:
        found = value(table, size)
        check.note(_where(table, size), found, found is not None and found <= most)
    return check


def _of_the_wire(cells: Cells) -> list[Check]:
    large = _at("1gbit", cells, LARGE)
    text = "1 Gb/s, from 16 MiB: at least 95 % of the bound"
    checks = [_least(text, large, lambda t, s: t.of_bound(s), 0.95)]
    for shape, ratio in OF_GLOO.items():
        these = [(t, s) for t, s in large if str(t.case.shape) == shape]
        text = f"1 Gb/s, {shape}, from 16 MiB: at least {ratio} times as fast as gloo"
        checks.append(_least(text, these, lambda t, s: t.ratio("gloo", s), ratio))
    text = "1 Gb/s, from 16 MiB: max/median of calls at most 1.05"
    return [*checks, _most(text, large, lambda t, s: t.unevenness(s), 1.05)]


def _against_peers(cells: Cells) -> list[Check]:
    gloo = lambda t, s: t.ratio("gloo", s)  # noqa: E731
    small = [(t, s) for t, s in cells if s == figures.KIB]
    fast = _at("10gbit", cells)
    alone = [(t, s) for t, s in fast if set(t.case.shape.ranks) == {1} and s >= MIB]
    openmpi = _at("1gbit", cells)
    text = "1 Gb/s: ahead of Open MPI at every size"
    return [
        _least(text, openmpi, lambda t, s: t.ratio("Open MPI", s), 1),
        _least("1 KiB: at least 20 times as fast as gloo", small, gloo, 20),
        _least("10 Gb/s: never slower than gloo", fast, gloo, 1),
        _least("10 Gb/s, one rank a host, from 1 MiB: at least 1.3 times gloo", alone, gloo, 1.3),
    ]


def _of_the_choice(cells: Cells) -> list[Check]:
    grows = Check("no size where a smaller one takes longer")
    for (table, smaller), (other, size) in pairwise(cells):
        before, after = table.seconds(OURS, smaller), table.seconds(OURS, size)
        if table is other and before and after:
            grows.note(_where(table, size), after / before, after >= before)
    unshaped = [(t, s) for t, s in cells if t.case.rate == UNSHAPED and s in (MIB, 256 * MIB)]
    return [
        _most("regret at most 1.1", cells, lambda t, s: t.regret(t.rows, s), 1.1),
        grows,
        _most(
            "unshaped, 1 and 256 MiB: as fast as the best number of streams (1.05)",
            unshaped,
            lambda t, s: t.regret(t.streams, s),
            1.05,
        ),
    ]


def _of_racks(cells: Cells) -> list[Check]:
    racks = [(t, s) for t, s in cells if t.case.racks and s >= LARGE]
    return [
        _least(
            "two racks, from 16 MiB: at least 2 times as fast as by the order of names",
            racks,
            lambda t, s: t.ratio(t.without, s),
            2,
        ),
        _most(
            "two racks, from 16 MiB: within 10 % of the best row",
            racks,
            lambda t, s: t.regret(t.rows, s),
            1.1,
        ),
    ]


def _of_networks(cells: Cells) -> list[Check]:
    several = [(t, s) for t, s in cells if t.case.networks > 1 and s >= LARGE]
    text = "two networks, from 16 MiB: at least 1.8 times as fast as with one"
    return [_least(text, several, lambda t, s: t.ratio(t.without, s), 1.8)]


def _of_prices(cells: Cells) -> list[Check]:
    """By how much prices are off, as factors: 0.8 and 1.25 are equally wrong."""
    middle = Check("prices within 10 % of the emulated hosts, in the median")
    worst = Check("prices within 25 % of the emulated hosts, all rows and sizes")
    for table in {id(table): table for table, _ in cells}.values():
        ratios = [table.of_predicted(row, size) for row in table.rows for size in table.sizes]
        off = [max(ratio, 1 / ratio) for ratio in ratios if ratio]
        if off:
            middle.cells.append((str(table.case), median(off), median(off) <= 1.1))
            worst.cells.append((str(table.case), max(off), max(off) <= 1.25))
    return [middle, worst]


_JUDGES = (_of_the_wire, _against_peers, _of_the_choice, _of_racks, _of_networks, _of_prices)


# --- Text ---


def _number(value: float | None, form: str = ".2f") -> str:
    return "–" if value is None else format(value, form)


def _time(seconds: float | None) -> str:
    return "–" if seconds is None else figures.format_seconds(seconds)


def _against(table: Table) -> str:
    others = [*([table.without] if table.without else []), *table.peers]
    header = ["", OURS, "of the bound", "max/median", "CPU s/GiB", "best row", "regret", *others]
    rows = []
    for size in table.sizes:
        cells = [figures.format_size(size), _time(table.seconds(OURS, size))]
        cells += [_number(table.of_bound(size)), _number(table.unevenness(size))]
        cells += [_number(table.processor_s_per_gib(size), ".1f")]
        cells += [table.best(table.rows, size) or "–", _number(table.regret(table.rows, size))]
        for peer in others:
            ratio = _number(table.ratio(peer, size))
            cells.append(f"{_time(table.seconds(peer, size))} ({ratio})")
        rows.append(cells)
    return report.table([*header[:7], *(f"{peer} (/ {OURS})" for peer in others)], rows)


def _by_way(table: Table) -> str:
    ways = [*table.rows, *table.streams]
    rows = [
        [figures.format_size(size), *(_time(table.seconds(way, size)) for way in ways)]
        for size in table.sizes
    ]
    return report.table(["by name", *ways], rows)


def _by_price(table: Table) -> str:
    rows = [
        [figures.format_size(size), *(_number(table.of_predicted(r, size)) for r in table.rows)]
        for size in table.sizes
    ]
    return report.table(["predicted / measured", *table.rows], rows)


def to_markdown(results: Results) -> str:
    parts = [f"# {results.title}", results.method, report.properties(results)]
    for table in results.tables:
        parts += [f"## {table.case}", _against(table)]
        if table.rows or table.streams:
            parts.append(_by_way(table))
        if table.predicted:
            parts.append(_by_price(table))
    parts += ["## Targets", "\n".join(check.verdict() for check in results.checks())]
    parts += report.not_measured(results.missing, results.failures)
    return "\n\n".join(parts) + "\n"


def _measurement(table: Table, peer: str, size: int) -> dict[str, Any]:
    return {
        "peer": peer,
        "bytes": size,
        "median_s": table.seconds(peer, size),
        "of_bound": table.of_bound(size, peer),
        "ratio_to_ours": table.ratio(peer, size),
        "longest_over_median": table.unevenness(size, peer),
        "processor_s_per_gib": table.processor_s_per_gib(size, peer),
        "rounds_s": table.rounds(peer, size),
    }


def to_json(results: Results) -> str:
    tables = [
        {
            "case": str(table.case),
            "ranks_of_hosts": table.case.shape.ranks,
            "rate": table.case.rate,
            "rack_of_host": table.case.rack_of_host,
            "average": table.case.average,
            "networks": table.case.networks,
            "rows": table.rows,
            "bound_s": {size: table.case.bound_s(size) for size in table.sizes},
            "idle_cores": table.results.idle,
            "costs": table.costs,
            "predicted_s": [[*key, seconds] for key, seconds in table.predicted.items()],
            "measurements": [
                _measurement(table, peer, size) for _, peer, size in table.results.rounds
            ],
        }
        for table in results.tables
    ]
    targets = [{"target": check.target, "cells": check.cells} for check in results.checks()]
    document = results.document()
    return json.dumps(document | {"tables": tables, "targets": targets}, indent=1) + "\n"


def plot(results: Results, path: Path) -> None:
    """Times of each case, with the bound."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = results.title  # the same ids each time
    tables = [table for table in results.tables if len(table.sizes) > 1] or results.tables
    columns = min(3, len(tables))
    lines = -(-len(tables) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(6 * columns, 4.5 * lines), squeeze=False)
    for axis in axes.flat[len(tables) :]:
        axis.remove()
    for axis, table in zip(axes.flat, tables, strict=False):
        _plot_table(axis, table)
    figure.suptitle(f"{results.title}: {results.machine['cpu']}")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _plot_table(axis: Any, table: Table) -> None:
    styles = {OURS: {"linewidth": 2.5, "color": "black"}}
    styles |= {way: {"linewidth": 0.7, "linestyle": ":"} for way in (*table.rows, *table.streams)}
    for peer in table.results.peers:
        points = [(size, s) for size in table.sizes if (s := table.seconds(peer, size))]
        if points:
            style = styles.get(peer, {})
            axis.plot(*zip(*points, strict=True), marker="o", markersize=3, label=peer, **style)
    bounds = [(size, bound) for size in table.sizes if (bound := table.case.bound_s(size))]
    if bounds:
        axis.plot(*zip(*bounds, strict=True), color="gray", linestyle="--", label="bound")
    axis.set(xscale="log", yscale="log", title=str(table.case), xlabel="bytes", ylabel="seconds")
    axis.set_xscale("log", base=2)
    axis.grid(alpha=0.3)
    axis.legend(fontsize="x-small")
