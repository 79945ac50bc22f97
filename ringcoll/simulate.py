"""``ringcoll simulate``: estimates the time of collectives on a described cluster, for each row of
the schedule table, and tells which row would be chosen.

The estimates are the prices that choose schedules in a job (docs/algorithms.md, "What a schedule
costs"). Nothing is sent, and no environment variable counts.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast

from rich.markup import escape
from rich.table import Table

from ringcoll import _core
from ringcoll.compare import parse_size
from ringcoll.errors import InvalidArgument
from ringcoll.info import wide_console
from ringcoll.outputs import check_picture, write_picture

DEFAULT_SIZES = "1K..256M"
COLLECTIVES = tuple(_core.collectives())
_BELOW_HOSTS = ("socket", "numa_node", "cache")  # the library's names of levels
_SIZE_STEP = 4
_BYTES_PER_US = {"mbit": 0.125, "gbit": 125.0}
_MICROSECONDS = {"us": 1.0, "ms": 1e3}


class Level(TypedDict):
    """Links between ranks whose nearest common group is of this level. An omitted cost is the one
    that ringcoll assumes for unmeasured links."""

    level: str  # "host", "network", …
    ranks: int  # of one group; at the last level: all ranks
    latency_us: NotRequired[float]
    rank_bytes_per_us: NotRequired[float]
    group_bytes_per_us: NotRequired[float]
    ports: NotRequired[int]  # network ports of a host; only at the level "host"


class RowPrice(TypedDict):
    name: str
    microseconds: float | None  # None: too many steps to be priced
    piece_bytes: NotRequired[int]
    pieces: NotRequired[int]


class SizePrices(TypedDict):
    bytes: int
    chosen: str
    bound_us: float | None  # least time of a host's port; None on one host
    rows: list[RowPrice]  # the rows that are offered on this cluster


class Prediction(TypedDict):
    collective: str
    dtype: str
    ranks: int
    hosts: int
    levels: list[Level]
    slots: int
    sizes: list[SizePrices]
    rounds: NotRequired[list[list[float]]]  # with messages: per round from, to, share, from, …


def predict(
    levels: Sequence[Level],
    sizes: Sequence[int],
    collective: str = "allreduce",
    dtype: str = "float32",
    **more: Any,
) -> Prediction:
    """Estimates the time of a collective on a cluster, for each of ``sizes``, in bytes of the whole
    vector. ``levels`` begins with the smallest groups: "socket", "numa_node" or "cache", if any,
    then hosts, then the network.

    ``more`` may have: algorithm, segment_bytes, slots and arena_bytes, like the knobs (without
    segment_bytes, pieces on one host are those for cores with 512 KiB of second-level cache).
    combined_bytes_per_us: what one core reduces. crowded=True: hosts have more ranks than cores.
    messages=True: also list all messages of the row that algorithm names. Raises InvalidArgument
    that names the field.
    """
    request = {"collective": collective, "dtype": dtype, "levels": levels, "sizes": sizes, **more}
    return cast(Prediction, json.loads(_core.simulate(json.dumps(request))))


def _parse_sizes(text: str) -> list[int]:
    """Sizes from a list, "1K,1M", or from a range, "1K..256M", in which each is four times the one
    before."""
    first, dots, last = text.partition("..")
    if not dots:
        return [parse_size(part.strip()) for part in text.split(",")]
    low, high = parse_size(first), parse_size(last)
    if low > high:
        raise argparse.ArgumentTypeError(f"{text!r} ends before it begins")
    sizes = []
    while low < high:
        sizes.append(low)
        low *= _SIZE_STEP
    return [*sizes, high]


def _parse_with_unit(text: str, units: dict[str, float], example: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(\w+)", text.lower())
    if not match or match[2] not in units or float(match[1]) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a value such as {example}")
    return float(match[1]) * units[match[2]]


def _parse_rate(text: str) -> float:
    return _parse_with_unit(text, _BYTES_PER_US, "10gbit or 500mbit")


def _parse_time(text: str) -> float:
    return _parse_with_unit(text, _MICROSECONDS, "20us or 0.1ms")


def _parse_positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def _parse_factor(text: str) -> float:
    if not re.fullmatch(r"\d+(\.\d+)?", text) or float(text) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return float(text)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "simulate",
        help="predict times and schedules of a collective on a cluster",
        description="Predicts how long a collective takes on a cluster that the options describe, "
        "with each schedule, and which schedule is chosen.",
    )
    parser.add_argument("--hosts", type=_parse_positive, required=True, help="number of hosts")
    parser.add_argument(
        "--ranks", type=_parse_positive, default=1, help="ranks on each host (default 1)"
    )
    parser.add_argument(
        "--sockets",
        type=_parse_positive,
        default=1,
        help="sockets of each host, each with the same number of ranks bound to it (default 1)",
    )
    parser.add_argument(
        "--ports",
        type=_parse_positive,
        default=1,
        help="network ports of each host, divided among its ranks; at most one a rank (default 1)",
    )
    parser.add_argument(
        "--leaf",
        type=_parse_positive,
        metavar="HOSTS",
        help="hosts below each leaf switch; a spine joins the leaves (default: one switch for all)",
    )
    parser.add_argument(
        "--oversubscription",
        type=_parse_factor,
        default=1.0,
        metavar="X",
        help="rate of all ports below a leaf divided by the rate of its uplinks (default 1)",
    )
    links = parser.add_mutually_exclusive_group()
    links.add_argument(
        "--costs",
        type=Path,
        metavar="FILE",
        help="JSON file with measured costs of links, as for RINGCOLL_COSTS and as in "
        "stats()['costs']",
    )
    links.add_argument(
        "--network",
        type=_parse_rate,
        metavar="RATE",
        help="rate of one port, such as 10gbit or 500mbit",
    )
    parser.add_argument(
        "--latency",
        type=_parse_time,
        metavar="TIME",
        help="latency between two hosts below one switch, such as 20us",
    )
    parser.add_argument(
        "--crowded", action="store_true", help="assume that hosts have more ranks than cores"
    )
    parser.add_argument(
        "--sizes",
        type=_parse_sizes,
        default=_parse_sizes(DEFAULT_SIZES),
        help="bytes of the whole vector, as a list such as 64K,1M or as a range (default "
        f"{DEFAULT_SIZES})",
    )
    parser.add_argument(
        "--collective",
        choices=COLLECTIVES,
        default="allreduce",
        metavar="NAME",
        help="one of %(choices)s (default allreduce)",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw the times into this file (.svg, .png, …)"
    )
    parser.set_defaults(run=run)


def levels_of(arguments: argparse.Namespace) -> list[Level]:
    """The levels that the command line describes."""
    hosts, above = _hosts_of(arguments), _levels_above(arguments)
    if arguments.costs is not None:
        if arguments.latency is not None or arguments.oversubscription != 1:
            raise InvalidArgument(
                "--costs already gives latencies and the rate of uplinks: leave --latency and "
                "--oversubscription out"
            )
        return _with_costs(hosts, above, arguments.costs)
    for i, level in enumerate(above):
        if arguments.latency is not None:
            level["latency_us"] = arguments.latency * (i + 1)  # a spine is twice as many links away
        if arguments.network is not None:
            level["rank_bytes_per_us"] = arguments.network
            level["group_bytes_per_us"] = arguments.network * arguments.ports
    if len(above) == 2:
        if arguments.network is None:
            raise InvalidArgument("--leaf needs --network, or --costs with the rate of the uplinks")
        of_leaf = arguments.network * arguments.ports * arguments.leaf
        above[1]["group_bytes_per_us"] = of_leaf / arguments.oversubscription
    elif arguments.oversubscription != 1:
        raise InvalidArgument("--oversubscription is that of leaf switches: give --leaf too")
    return [*hosts, *above]


def _hosts_of(arguments: argparse.Namespace) -> list[Level]:
    """The level of hosts, after that of sockets if there is more than one."""
    ranks, sockets = arguments.ranks, arguments.sockets
    if arguments.ports > ranks:
        raise InvalidArgument(
            f"--ports {arguments.ports} is more than --ranks {ranks}: each rank uses one port"
        )
    hosts = Level(level="host", ranks=ranks, ports=arguments.ports)
    if sockets == 1:
        return [hosts]
    if ranks % sockets or sockets == ranks or arguments.crowded:
        raise InvalidArgument(
            f"--sockets {sockets}: the {ranks} ranks of a host must divide equally among the "
            "sockets, with at least two ranks to a socket and without --crowded"
        )
    return [Level(level="socket", ranks=ranks // sockets), hosts]


def _levels_above(arguments: argparse.Namespace) -> list[Level]:
    ranks, leaf = arguments.hosts * arguments.ranks, arguments.leaf
    if arguments.hosts == 1:
        _refuse_links(arguments)
        return []
    if leaf is None:
        return [Level(level="network", ranks=ranks)]
    if leaf >= arguments.hosts:
        raise InvalidArgument(
            f"--leaf {leaf}: a leaf must have fewer hosts than the cluster, which has "
            f"{arguments.hosts}"
        )
    return [Level(level="leaf", ranks=leaf * arguments.ranks), Level(level="spine", ranks=ranks)]


def _refuse_links(arguments: argparse.Namespace) -> None:
    for name in ("leaf", "network", "latency"):
        if getattr(arguments, name) is not None:
            raise InvalidArgument(
                f"--{name} describes links between hosts, and --hosts 1 has none: leave it out"
            )


def _with_costs(hosts: list[Level], above: list[Level], path: Path) -> list[Level]:
    try:
        costs = json.loads(path.read_text())["levels"]
        given = {str(name): dict(cost) for name, cost in costs.items()}
    except OSError as error:
        raise InvalidArgument(f"--costs {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InvalidArgument(
            f'--costs {path} must be JSON with an object "levels" of objects'
        ) from None
    below = [name for name in given if name in _BELOW_HOSTS]
    if len(below) < len(hosts) - 1:
        raise InvalidArgument(
            f"--costs {path} has no level below host, which --sockets needs: measure the costs in "
            "a job whose ranks are bound to sockets"
        )
    names = [name for name in given if name not in (*_BELOW_HOSTS, "host")]
    if len(names) != len(above):
        raise InvalidArgument(
            f"--costs {path} has {len(names)} levels above host ({', '.join(names)}), and the "
            f"cluster has {len(above)}: one without --leaf, two with it, none with --hosts 1"
        )
    return [
        cast(Level, {**given.get(name, {}), **level, "level": name})
        for name, level in zip(
            [*below[: len(hosts) - 1], "host", *names], [*hosts, *above], strict=True
        )
    ]


def run(arguments: argparse.Namespace) -> int:
    if arguments.plot is not None:
        check_picture("--plot", arguments.plot)
    levels, crowded = levels_of(arguments), arguments.crowded
    prediction = predict(levels, arguments.sizes, arguments.collective, crowded=crowded)
    if arguments.plot is not None:
        plot(prediction, arguments.plot)
    if arguments.json:
        print(json.dumps(prediction, indent=2))
        return 0
    console = wide_console()
    console.print(escape(links_text(prediction)))
    console.print(table_of(prediction))
    return 0


def links_text(prediction: Prediction) -> str:
    links = "; ".join(
        f"{level['level']} {level['latency_us']:g} us, {level['rank_bytes_per_us'] / 1e3:g} GB/s a "
        f"rank, {level['group_bytes_per_us'] / 1e3:g} GB/s together"
        for level in prediction["levels"]
    )
    return (
        f"{prediction['collective']} of {prediction['ranks']} ranks on {prediction['hosts']} "
        f"{'host' if prediction['hosts'] == 1 else 'hosts'}, "
        f"{prediction['slots']} pieces in flight; {links}"
    )


def time_text(microseconds: float) -> str:
    for unit, length in (("s", 1e6), ("ms", 1e3)):
        if microseconds >= length:
            return f"{microseconds / length:.3g} {unit}"
    return f"{microseconds:.3g} us"


def size_text(size: int) -> str:
    for unit, length in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= length and size % length == 0:
            return f"{size // length} {unit}"
    return f"{size} B"


def table_of(prediction: Prediction) -> Table:
    """A table with a line for each size and a column for each schedule row. The chosen row is bold
    and marked by *."""
    table = Table(caption="* is chosen. No price: too many steps to work it out; not offered.")
    table.add_column("bytes", justify="right", no_wrap=True)
    for row in prediction["sizes"][0]["rows"]:
        table.add_column(row["name"], justify="right")
    table.add_column("piece", justify="right")
    table.add_column("bound", justify="right")
    for line in prediction["sizes"]:
        cells, piece = [], ""
        for row in line["rows"]:
            price = row["microseconds"]
            cell = "no price" if price is None else time_text(price)
            if row["name"] == line["chosen"]:
                cell = f"[bold]{cell} *[/bold]"
                piece = size_text(row["piece_bytes"]) if "piece_bytes" in row else ""
            cells.append(cell)
        bound = "" if line["bound_us"] is None else time_text(line["bound_us"])
        table.add_row(size_text(line["bytes"]), *cells, piece, bound)
    return table


def _with_gaps(values: list[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]


def plot(prediction: Prediction, path: Path) -> None:
    """Plots time by size, with a curve for each row and the bound dashed. Precondition:
    check_picture() has accepted ``path``."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 5), layout="tight")
    axis = figure.subplots()
    sizes = [line["bytes"] for line in prediction["sizes"]]
    curves: dict[str, list[float | None]] = {}
    for i, first in enumerate(prediction["sizes"][0]["rows"]):
        curves[first["name"]] = [line["rows"][i]["microseconds"] for line in prediction["sizes"]]
    for name, curve in curves.items():
        axis.plot(sizes, _with_gaps(curve), marker="o", markersize=3, label=name)
    chosen = [curves[line["chosen"]][i] for i, line in enumerate(prediction["sizes"])]
    axis.plot(sizes, _with_gaps(chosen), color="black", linewidth=4, alpha=0.25, label="chosen")
    bounds = [line["bound_us"] for line in prediction["sizes"]]
    axis.plot(sizes, _with_gaps(bounds), color="black", linestyle="--", linewidth=1, label="bound")
    axis.set(yscale="log", xlabel="bytes", ylabel="microseconds")
    axis.set_xscale("log", base=2)
    axis.grid(alpha=0.3)
    axis.legend()
    axis.set_title(
        f"{prediction['collective']}, {prediction['ranks']} ranks on {prediction['hosts']} hosts"
    )
    write_picture("--plot", path, figure)
