"""Prints findings, and the hosts of a job, as tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ringcoll.cluster.hosts import Host, Views
from ringcoll.cluster.pair import View
from ringcoll.findings import FAILED, NOTE, OK, Finding

if TYPE_CHECKING:
    from ringcoll.checkup import Checkup

_COLORS = {OK: "green", NOTE: "yellow", FAILED: "bold red"}


def make_findings_table(findings: Iterable[Finding], title: str | None = None) -> Table:
    table = Table("part", "status", "found", title=title, title_justify="left")
    for finding in findings:
        status = f"[{_COLORS[finding.status]}]{finding.status}[/]"
        table.add_row(escape(finding.part), status, escape(finding.detail))
    return table


def print_checkup(console: Console, found: Checkup) -> None:
    """Prints the hosts with their best measurements, and the findings."""
    count = len(found.hosts)
    table = Table(title=f"{count} host{'s' if count > 1 else ''}", title_justify="left")
    for column in ("host", "ranks", "interface", "MTU", "reached by"):
        table.add_column(column)
    for column in ("round trip", "receives", "sends"):
        table.add_column(column, justify="right")
    for number, host in enumerate(found.hosts):
        table.add_row(*map(escape, _row(number, host, found.views, count)))
    console.print(table)
    if found.findings:
        console.print(make_findings_table(found.findings, "What deviates"))


def _row(number: int, host: Host, views: Views, hosts: int) -> list[str]:
    seen = [view for (_, b), view in views.items() if b == number]
    sees = [view for (a, _), view in views.items() if a == number]
    trips = [view.round_trip_us for view in seen if view.round_trip_us]
    interface = host.interface
    return [
        host.name,
        _ranks(host.ranks),
        f"{interface['name']}, {interface['address']}" if interface else "none is up",
        str(interface.get("mtu", "")),
        f"{sum(view.reached for view in seen)} of {hosts - 1}",
        f"{min(trips):.0f} µs" if trips else "",
        _best_rate(sees),
        _best_rate(seen),
    ]


def _ranks(ranks: list[int]) -> str:
    first, last = ranks[0], ranks[-1]
    if len(ranks) == 1:
        return str(first)
    if ranks == list(range(first, last + 1)):
        return f"{first} to {last}"
    return f"{first} and {len(ranks) - 1} more"


def _best_rate(views: Iterable[View]) -> str:
    rates = [view.bytes_per_s for view in views if view.bytes_per_s]
    return format_rate(max(rates)) if rates else ""


def format_rate(bytes_per_s: float) -> str:
    """A rate in bits per second, the unit of network cards."""
    bits = bytes_per_s * 8
    return f"{bits / 1e9:.3g} Gb/s" if bits >= 1e9 else f"{bits / 1e6:.3g} Mb/s"
