"""``ringcoll store tables``: what a store's parameter tables are, and what is done with them."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.filesize import decimal
from rich.live import Live
from rich.table import Table

from ringcoll.errors import Gone
from ringcoll.info import wide_console

if TYPE_CHECKING:
    from ringcoll.weights.store import Store

Info = dict[str, Any]
Opened = Callable[[argparse.Namespace], AbstractContextManager["Store"]]

_LAGS = 8  # of more workers the largest lag is shown alone
_COLUMNS = (
    *("table", "kind", "type", "rule", "shards", "servers", "rows", "size", "pushes", "pulls"),
    *("clock", "workers", "lag", "NaN", "evicted"),
)


def add_tables_parser(
    add: Callable[[str, Any, str], argparse.ArgumentParser],
    opened: Opened,
    take_address: Callable[[argparse.ArgumentParser], None],
) -> None:
    """Adds ``tables``."""
    part = add("tables", lambda args: _run(args, opened), "list the parameter tables of a store")
    take_address(part)
    part.add_argument("--json", action="store_true", help="print JSON, of each table in a line")
    part.add_argument("--watch", action="store_true", help="go on, with pushes and pulls a second")
    part.add_argument("--interval", type=float, default=1.0, metavar="S", help="(default: 1)")
    part.add_argument("--count", type=int, help="with --watch, end after so many intervals")


def _run(args: argparse.Namespace, opened: Opened) -> int:
    with opened(args) as store:
        if not args.watch:
            found = _look(store)
            if args.json:
                _print_json(found)
            else:
                wide_console().print(_shown(found, None))
            return 0
        try:
            _watch(args, store)
        except KeyboardInterrupt:
            print()
    return 0


def _watch(args: argparse.Namespace, store: Store) -> None:
    """On a terminal, one table that changes; elsewhere one after another."""
    console = wide_console()
    if args.json:
        for found, _ in _each(args, store):
            _print_json(found)
    elif console.is_terminal:
        with Live(console=Console(), auto_refresh=False) as live:
            for found, rates in _each(args, store):
                live.update(_shown(found, rates), refresh=True)
    else:
        for found, rates in _each(args, store):
            console.print(_shown(found, rates))


def _each(args: argparse.Namespace, store: Store) -> Iterator[tuple[list[Info], list[Info]]]:
    """After each interval the tables, and their pushes and pulls a second, which are added to what
    is printed as JSON."""
    before, at = {info["name"]: info for info in _look(store)}, time.monotonic()
    count = 0
    while args.count is None or count < args.count:
        time.sleep(args.interval)
        found, now = _look(store), time.monotonic()
        for info in found:
            info["per_second"] = _rates(before.get(info["name"]), info, now - at)
        yield found, [info["per_second"] for info in found]
        before, at = {info["name"]: info for info in found}, now
        count += 1


def _rates(before: Info | None, info: Info, seconds: float) -> Info:
    """A shard that has moved counts anew, and a table may be new: nothing is below zero."""
    old = before or {"pushes": 0, "pulls": 0}
    return {
        what: round(max(0, info[what] - old[what]) / seconds, 1) for what in ("pushes", "pulls")
    }


def _look(store: Store) -> list[Info]:
    """What there is of each table. One that is dropped meanwhile is left out."""
    found = []
    for name in sorted(store.tables()):
        try:
            found.append(store.table(name).info())
        except Gone:
            continue
    return found


def _print_json(found: list[Info]) -> None:
    for info in found:
        print(json.dumps(info), flush=True)


def _shown(found: list[Info], rates: list[Info] | None) -> Table:
    unit = "/s" if rates else ""
    titles = [title + unit if title in ("pushes", "pulls") else title for title in _COLUMNS]
    table = Table(*titles, box=None)
    for index, info in enumerate(found):
        table.add_row(*_row(info, rates[index] if rates else info))
    return table


def _row(info: Info, uses: Info) -> list[str]:
    spec = info["spec"]
    shape = " x ".join(map(str, spec.get("row_shape", spec.get("shape")))) or "scalar"
    lost = f" ({info['lost']} lost)" if info["lost"] else ""
    silent = f" ({len(info['missing'])} silent)" if info["missing"] else ""
    has_clocks = spec["staleness"] is not None
    return [
        info["name"],
        f"rows of {shape}" if "row_shape" in spec else shape,
        spec["dtype"],
        _rule(spec["rule"]),
        f"{info['shards']}{lost}",
        f"{len(info['servers'])}{silent}",
        str(info["rows"]),
        decimal(info["bytes"]),
        str(uses["pushes"]),
        str(uses["pulls"]),
        str(info["clock"]) if has_clocks else "",
        str(len(info["workers"])),
        _lag(list(info["workers"].values())) if has_clocks else "",
        str(info["nan"]),
        str(info["evicted"]),
    ]


def _rule(rule: Info) -> str:
    """The name, and the learning rate if there is one."""
    return f"{rule['rule']} {rule['lr']:g}" if "lr" in rule else str(rule["rule"])


def _lag(lags: list[int]) -> str:
    """How many clocks each worker is behind the foremost one."""
    if len(lags) > _LAGS:
        return f"up to {max(lags)}"
    return " ".join(map(str, lags))
