"""What was measured of one-sided memory and of the store: tables, targets and a plot."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import figures, report, store_runs
from .checks import Check
from .figures import KIB, MIB, OURS
from .findings import Findings
from .one_sided import MEMCPY, PLAIN, Copies, Shares, share_document
from .places import TARGET_RATE, wire_s
from .store_runs import Stored

LEAST_OF_MEMCPY = 0.6
MOST_SMALL_S = 5e-6
LEAST_OF_WIRE = 0.95
LEAST_ADDED = 0.9
LARGE = 64 * MIB
SMALL = 16 * KIB
LEAST_COUNTED = MIB  # a smaller copy takes less processor time than what is around it


@dataclass
class Results(Findings):
    copies: list[Copies] = field(default_factory=list)
    shares: list[Shares] = field(default_factory=list)
    stored: Stored = field(default_factory=Stored)

    @property
    def rounds(self) -> bool:
        """Whether anything was measured."""
        copied = any(one.results.rounds for one in self.copies)
        return copied or any(one.rounds for one in self.shares) or bool(self.stored.rounds)

    def checks(self) -> list[Check]:
        return [
            *_of_one_host([one for one in self.copies if not one.rate]),
            _of_wire([one for one in self.copies if one.rate == TARGET_RATE]),
            _of_shares(self.shares),
            *store_runs.checks(self.stored),
        ]


# --- Targets ---


def _of_one_host(copies: list[Copies]) -> list[Check]:
    fast = Check(f"one host, 64 MiB: at least {LEAST_OF_MEMCPY} of memcpy's rate")
    small = Check(f"one host, 16 KiB: at most {MOST_SMALL_S * 1e6:.0f} µs", unit="µs")
    for one in copies:
        for peer in (OURS, PLAIN):
            ratio = one.ratio(MEMCPY, LARGE, to=peer)
            fast.note(f"{one.way}, {peer}", ratio, ratio is not None and ratio >= LEAST_OF_MEMCPY)
            seconds = one.seconds(peer, SMALL)
            if seconds is not None:
                small.note(f"{one.way}, {peer}", seconds * 1e6, seconds <= MOST_SMALL_S)
    return [fast, small]


def _of_wire(copies: list[Copies]) -> Check:
    check = Check(f"two hosts at 1 Gb/s, from 16 MiB: at least {LEAST_OF_WIRE:.0%} of the wire")
    for one in copies:
        for size in one.sizes:
            part = one.part_of_wire(OURS, size) if size >= 16 * MIB else None
            where = f"{one.what}, {figures.format_size(size)}"
            check.note(where, part, part is not None and part >= LEAST_OF_WIRE)
    return check


def _of_shares(shares: list[Shares]) -> Check:
    text = f"each owner of a shared read adds at least {LEAST_ADDED} of its link"
    check = Check(text, unit="links")
    for one in shares:
        for owners in one.rounds:
            added = one.added(owners)
            where = f"{one.rate}, owner {owners}"
            check.note(where, added, added is not None and added >= LEAST_ADDED)
    return check


# --- Tables ---


def _cell(one: Copies, peer: str, size: int) -> str:
    seconds = one.seconds(peer, size)
    if seconds is None:
        return "–"
    words = [figures.format_seconds(seconds)]
    if size >= LEAST_COUNTED:
        part = one.part_of_wire(peer, size)
        rate = f"{size / seconds / 1e9:.1f} GB/s" if part is None else f"{part:.1%}"
        words.append(rate)
    ratio = one.ratio(peer, size) if peer != OURS else None
    text = ", ".join(words)
    return text if ratio is None else f"{text} ({ratio:.2f})"


def _times(one: Copies) -> str:
    peers = one.peers()
    rows = []
    for size in one.sizes:
        wire = [figures.format_seconds(wire_s(one.rate, size))] if one.rate else []
        cells = [_cell(one, peer, size) for peer in peers]
        rows.append([figures.format_size(size), *wire, *cells])
    return report.table(["", *(["wire"] if one.rate else []), *peers], rows)


def _processors(one: Copies) -> str:
    peers = one.peers()
    rows = []
    for size in one.sizes:
        if size < LEAST_COUNTED:
            continue
        cells = []
        for peer in peers:
            spent = one.processor_s_a_gib(peer, size)
            cells.append(" + ".join(f"{s:.2f}" for s in reversed(spent)) if spent else "–")
        rows.append([figures.format_size(size), *cells])
    return report.table(["", *peers], rows) if rows else ""


def _shares(one: Shares) -> str:
    rows = []
    for owners, seconds in one.rounds.items():
        middle, links, added = figures.middle(seconds), one.links(owners), one.added(owners)
        if middle is None or links is None or added is None:
            continue
        time = figures.format_seconds(middle)
        rows.append([str(owners), time, f"{links:.2f} links", f"{added:.2f} links"])
    return report.table(["owners", "time", "rate", "the last owner adds"], rows)


def to_markdown(results: Results) -> str:
    parts = [f"# {results.title}", results.method, report.properties(results)]
    for one in results.copies:
        if not one.results.rounds:
            continue
        parts += [f"## {one.what}, {one.place}", _times(one)]
        if processors := _processors(one):
            parts += ["Processor seconds a GiB, of the user + of the owner:", processors]
    for shares in results.shares:
        if shares.rounds:
            size = figures.format_size(shares.size)
            parts += [f"## {size} shared by owners at {shares.rate} each", _shares(shares)]
    parts += store_runs.sections(results.stored)
    rows = [row for check in results.checks() for row in check.rows()]
    parts += ["## Targets", report.table(["target", "where", "measured", ""], rows)]
    parts += report.not_measured(results.missing, results.failures)
    return "\n\n".join(parts) + "\n"


# --- Data ---


def _document(one: Copies) -> list[dict[str, Any]]:
    return [
        {
            "place": one.place,
            "way": one.way,
            "tensors": one.tensors,
            "bytes": size,
            "peer": peer,
            "median_s": one.seconds(peer, size),
            "ratio_to_ours": one.ratio(peer, size),
            "part_of_wire": one.part_of_wire(peer, size),
            "processor_s_a_gib": one.processor_s_a_gib(peer, size),
            "rounds_s": rounds,
        }
        for (_, peer, size), rounds in one.results.rounds.items()
    ]


def to_json(results: Results) -> str:
    document = results.document()
    document["copies"] = [cell for one in results.copies for cell in _document(one)]
    document["idle_cores"] = {
        f"{one.place}: {job}": cores
        for one in results.copies
        for job, cores in one.results.idle.items()
    }
    document["shares"] = [share_document(one) for one in results.shares]
    document["store"] = store_runs.document(results.stored)
    document["targets"] = [check.document() for check in results.checks()]
    return json.dumps(document, indent=1) + "\n"


# --- Plot ---


def plot(results: Results, path: Path) -> None:
    """A panel for each place and way, with rates by size, and one for shared reads."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = results.title  # the same ids each time
    measured = [one for one in results.copies if one.results.rounds]
    copies = [one for one in measured if one.tensors == 1]
    dicts = [one for one in measured if one.tensors > 1]
    shares = [one for one in results.shares if one.rounds]
    count = len(copies) + len(dicts) + len(shares)
    columns = min(2, count) or 1
    rows = max(1, -(-count // columns))
    size = (6.5 * columns, 5 * rows)
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False)
    panels = list(axes.flat)
    for axis, one in zip(panels, copies, strict=False):
        _draw_copies(axis, one)
    for axis, one in zip(panels[len(copies) :], dicts, strict=False):
        _draw_dict(axis, one)
    for axis, share in zip(panels[len(copies) + len(dicts) :], shares, strict=False):
        _draw_shares(axis, share)
    for axis in panels[count:]:
        axis.remove()
    figure.suptitle(f"{results.title}: {results.machine['cpu']}")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _draw_copies(axis: Any, one: Copies) -> None:
    styles: dict[str, dict[str, Any]] = {
        OURS: {"linewidth": 2.5, "color": "black"},
        MEMCPY: {"linestyle": "--"},
    }
    for peer in one.peers():
        times = [(size, one.seconds(peer, size)) for size in one.sizes]
        points = [(size, size / seconds) for size, seconds in times if seconds]
        if points:
            x, y = zip(*points, strict=True)
            axis.plot(x, y, marker="o", markersize=3, label=peer, **styles.get(peer, {}))
    if one.rate:
        axis.axhline(1 / wire_s(one.rate, 1), linestyle="--", color="grey", label="wire")
    title = f"{one.way}, {one.place}"
    axis.set(xscale="log", yscale="log", title=title, xlabel="bytes", ylabel="bytes a second")
    axis.set_xscale("log", base=2)
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")


def _draw_dict(axis: Any, one: Copies) -> None:
    [size] = one.sizes
    rates = {peer: size / (one.seconds(peer, size) or math.inf) for peer in one.peers()}
    axis.barh(list(rates), list(rates.values()), color="grey")
    axis.invert_yaxis()
    if one.rate:
        axis.axvline(1 / wire_s(one.rate, 1), linestyle="--", color="black", label="wire")
        axis.legend(fontsize="small")
    title = f"{one.what}, {figures.format_size(size)}, {one.place}"
    axis.set(title=title, xlabel="bytes a second")


def _draw_shares(axis: Any, one: Shares) -> None:
    owners = list(one.rounds)
    axis.bar(owners, [one.links(n) or 0.0 for n in owners], color="grey")
    axis.plot(owners, owners, marker="_", markersize=40, linestyle="", color="black")
    title = f"{figures.format_size(one.size)} from several owners at {one.rate} each"
    axis.set(title=title, xlabel="owners", ylabel="rate in links")
    axis.set_xticks(owners)
