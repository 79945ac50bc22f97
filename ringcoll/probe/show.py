"""Prints a survey as tables."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ringcoll.checkup.show import format_rate, make_findings_table
from ringcoll.cluster.hosts import some
from ringcoll.cluster.pair import View
from ringcoll.probe import Survey
from ringcoll.probe.structure import level_name

_PLURALS = {"leaf": "leaves"}


def print_survey(console: Console, found: Survey) -> None:
    console.print(_groups(found))
    console.print(_links(found))
    if found.findings:
        console.print(make_findings_table(found.findings, "What is odd"))
    console.print(escape(verdict(found)))


def verdict(found: Survey) -> str:
    count, levels = len(found.hosts), found.structure.levels
    where = " in the pairs that were measured" if len(found.views) < count * (count - 1) else ""
    if levels:
        names = [plural(level, len(groups)) for level, groups in enumerate(levels)]
        return f"{' in '.join(names)} were found{where}."
    if count < 4:
        hosts = f"{count} host{'s' if count > 1 else ''}"
        return f"{hosts}: there is nothing to find, for a group has two hosts at least."
    if where:
        return f"No structure was found{where}."
    return "No structure was found: all hosts are alike, one group."


def plural(level: int, count: int) -> str:
    name = level_name(level)
    if name[-1].isdigit():
        name = f"group{'s' if count != 1 else ''} of {name}"
    elif count != 1:
        name = _PLURALS.get(name, name + "s")
    return f"{count} {name}"


def _groups(found: Survey) -> Table:
    count = len(found.hosts)
    table = Table("place", "hosts", title=f"{count} host{'s' if count > 1 else ''}")
    table.title_justify = "left"
    members: dict[str, list[str]] = {}
    for host, place in found.places().items():
        members.setdefault(place, []).append(host)
    for place, hosts in members.items():
        table.add_row(place, escape(some(hosts)))
    return table


def _links(found: Survey) -> Table:
    """Median and extremes of rates and round trips, by distance of the hosts."""
    table = Table("hosts", title="Median (least to most)", title_justify="left")
    for column in ("pairs", "rate", "round trip"):
        table.add_column(column, justify="right")
    by_distance: dict[int, list[View]] = {}
    for (a, b), view in found.views.items():
        by_distance.setdefault(found.structure.distance(a, b), []).append(view)
    for distance, views in sorted(by_distance.items()):
        rates = [view.bytes_per_s for view in views if view.bytes_per_s]
        trips = [view.round_trip_us for view in views if view.round_trip_us]
        table.add_row(
            _where(distance, bool(found.structure.levels)),
            str(len(views)),
            _spread(rates, format_rate),
            _spread(trips, "{:.0f} µs".format),
        )
    return table


def _where(distance: int, grouped: bool) -> str:
    if not grouped:
        return "all"
    if distance == 0:
        return "of one leaf"
    return f"of different {plural(distance - 1, 2).removeprefix('2 ')}"


def _spread(values: list[float], text: Callable[[float], str]) -> str:
    if not values:
        return ""
    median = statistics.median(values)
    return f"{text(median)} ({text(min(values))} to {text(max(values))})"
