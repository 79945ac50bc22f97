"""``ringcoll info``: version, transports, schedules with their cost lines, and knobs."""

from __future__ import annotations

import argparse
import json
import textwrap
from typing import Any, cast

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ringcoll import _core

# Environment variables that are read but are not knobs of the library.
OTHER_VARIABLES = {
    "RINGCOLL_STORE": "where the ranks find each other, for `ringcoll.init()`: `tcp://HOST:PORT`, "
    "`file:///DIRECTORY`, `horovod://HOST:PORT/SCOPE` or `local://NAME`. Unset: what the launcher "
    "has set says it",
    "RINGCOLL_LIBRARY": "path of the `libringcoll.so` that Horovod loads. Unset: that of the "
    "installed package",
    "RINGCOLL_KEY": "the key of a store of weights, for the commands of `ringcoll store`",
    "RINGCOLL_MXNET": "1: the distributed stores of MXNet 1.9 (`dist_sync` and the like) are "
    "ringcoll's, in scripts that know nothing of it. Unset or 0: they are MXNet's",
    "RINGCOLL_MXNET_REPLICAS": "how many backups the shards of ringcoll's stores for MXNet have. "
    "Unset: one where servers are on two hosts or more. MXNet's own servers have none",
}


# Explains the columns "owner" and "ranks" of the table of knobs (csrc/base/knobs.h).
_COLUMNS = """\
The **owner** is the layer or transport that reads the knob: a folder of `csrc/` or of
`csrc/transport/`. The column **ranks** says how the values of the ranks of a job relate:

| ranks | meaning |
| -- | -- |
| agreed | they have the same value, or all of them fail when they start, with one error \
that names the knob, two ranks and their values |
| rank 0's | the value of rank 0 counts; other ranks have the same, or none |
| own | each rank uses its own value |"""


def library_info() -> dict[str, Any]:
    """The answer of ringcoll_info(). Raises InvalidArgument if a knob has an invalid value."""
    return cast("dict[str, Any]", json.loads(_core.info()))


def wide_console(stderr: bool = False) -> Console:
    """A console that does not wrap tables to 80 columns when its output goes to a file."""
    console = Console(stderr=stderr, highlight=False)
    return console if console.is_terminal else Console(stderr=stderr, highlight=False, width=160)


def knobs_markdown(knobs: list[dict[str, str]]) -> str:
    """The page docs/knobs.md. It does not depend on the values in the environment."""
    lines = [
        "# Knobs",
        "",
        *textwrap.wrap(
            "This page is written by `ringcoll info --knobs-markdown`. Knobs are environment "
            "variables, which are read when a communicator is made. A value out of range is an "
            "error. An unknown name that begins with `RINGCOLL_` causes a warning.",
            100,
            break_on_hyphens=False,
        ),
        "",
        "| name | type | default | range | owner | ranks | meaning |",
        "| -- | -- | -- | -- | -- | -- | -- |",
    ]
    for knob in knobs:
        default = f"`{knob['default']}`" if knob["default"] else "(empty)"
        cells = [f"`{knob['name']}`", knob["type"], default, knob["range"]]
        cells += [knob["owner"], knob["agreement"], knob["help"]]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    lines += [
        "",
        "Sizes in bytes take the suffixes K, M and G (powers of 1024).",
        "",
        _COLUMNS,
        "",
        "## Other variables",
        "",
    ]
    lines += ["| name | meaning |", "| -- | -- |"]
    lines += [f"| `{name}` | {meaning} |" for name, meaning in OTHER_VARIABLES.items()]
    return "\n".join(lines)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "info",
        help="print version, transports, schedules and knobs",
        description="Prints the version, and tables of the transports, schedules and knobs.",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print everything as JSON")
    form.add_argument("--knobs-markdown", action="store_true", help="print the page docs/knobs.md")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    found = library_info()
    if arguments.json:
        print(json.dumps(found, indent=2))
    elif arguments.knobs_markdown:
        print(knobs_markdown(found["knobs"]))
    else:
        _print_tables(found, wide_console())
    return 0


def _print_tables(found: dict[str, Any], console: Console) -> None:
    console.print(
        f"ringcoll {found['release']}, ABI {found['abi']}.{found['abi_revision']}, vector "
        f"instructions {found['simd']}"
    )
    _print_table(console, "transports", found["transports"], ["name", "help", "usable", "reason"])
    _print_table(
        console, "schedules", found["schedules"], ["collective", "name", "summary", "cost"]
    )
    columns = ["name", "type", "default", "range", "owner", "agreement", "value", "help"]
    _print_table(console, "knobs", found["knobs"], columns)
    console.print(escape(costs_text(found["costs"])))


def costs_text(costs: dict[str, Any] | None) -> str:
    """Describes the file of RINGCOLL_COSTS, or the error in it."""
    if costs is None:
        return "costs of links: measured when a job starts"
    if "error" in costs:
        return str(costs["error"])
    levels = [
        f"{name} {level['latency_us']:g} us, {level['rank_bytes_per_us'] / 1e3:g} GB/s a rank, "
        f"{level['group_bytes_per_us'] / 1e3:g} GB/s together"
        for name, level in costs["levels"].items()
    ]
    return f"costs of links: {'; '.join(levels) or 'of no level'} (RINGCOLL_COSTS={costs['file']})"


def _print_table(
    console: Console, title: str, rows: list[dict[str, Any]], columns: list[str]
) -> None:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, no_wrap=column == "name")
    for row in rows:
        table.add_row(*(_text(row.get(column, "")) for column in columns))
    console.print(table)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    # rich would read square brackets as markup.
    return str(value).replace("[", "\\[")
