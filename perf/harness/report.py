"""What was measured, as JSON, as a Markdown table and as a plot."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from . import figures
from .distance import STATES
from .figures import Target

Key = tuple[int, str, int]  # ranks, peer, bytes


@dataclass
class Memory:
    """The rank of the job that took most above its buffers while a size was measured."""

    ranks: int
    size: int
    above_buffers: int  # bytes: peak in use, less the caller's buffers


@dataclass
class Visit:
    """One visit to a job: seconds of a call in each batch, calls of a batch, and the processor time
    of all ranks (where buffers are freed in between, with what it takes to fill them)."""

    calls_s: list[float]
    calls: int
    processor_s: float
    state: str = ""  # how far apart the cores were; "": not asked
    settled: bool = True  # False: that changed meanwhile
    processor_of_rank_s: list[float] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return median(self.calls_s)


@dataclass
class Results:
    title: str
    ours: str
    method: str
    targets: list[Target]
    machine: dict[str, str]
    peers: dict[str, str]  # name -> version
    labels: dict[int, str] = field(default_factory=dict)  # bytes -> what to call the row
    conditions: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    rounds: dict[Key, list[float | None]] = field(default_factory=dict)
    visits: dict[Key, list[Visit]] = field(default_factory=dict)
    # Of each round the state of distance.py, where it was asked for; "" where nothing counts.
    states: dict[Key, list[str]] = field(default_factory=dict)
    unsettled: int = 0  # visits in which it changed, so that they do not count
    # A limit, and the ways to it: its time in a round is that of the best of them.
    limits: dict[str, list[str]] = field(default_factory=dict)
    memory: list[Memory] = field(default_factory=list)
    memory_bound: int = 0
    idle: dict[str, float] = field(default_factory=dict)  # job -> cores it takes while idle

    def parts(self) -> list[tuple[str, Results]]:
        """What was measured in each state, limits among it; one part "" where none was asked
        for."""
        found = [s for s in STATES if any(s in states for states in self.states.values())]
        if not found:
            return [("", self._with_limits())]
        return [(state, self._only(state)._with_limits()) for state in found]

    def _only(self, state: str) -> Results:
        kept = {}
        for key, rounds in self.rounds.items():
            states = self.states.get(key, [])
            of_state = [s if at == state else None for s, at in zip(rounds, states, strict=False)]
            if any(of_state):
                kept[key] = of_state
        asked = [t for t in self.targets if not t.states or state in t.states]
        return replace(self, rounds=kept, states={}, targets=asked)

    def _with_limits(self) -> Results:
        rounds = dict(self.rounds)
        for limit, ways in self.limits.items():
            for ranks, size in {(r, s) for r, name, s in self.rounds if name in ways}:
                of_ways = [self.rounds.get((ranks, way, size), []) for way in ways]
                rounds[ranks, limit, size] = figures.best(of_ways)
        return replace(self, rounds=rounds)

    def ratios(self) -> dict[Key, float]:
        """Every peer's time over ours."""
        found = {}
        for (ranks, peer, size), rounds in self.rounds.items():
            ours = self.rounds.get((ranks, self.ours, size), [])
            value = figures.ratio(rounds, ours) if peer != self.ours else None
            if value is not None:
                found[ranks, peer, size] = value
        return found

    def verdicts(self) -> list[figures.Verdict]:
        return figures.judge(self.targets, self.ratios())

    def all_met(self) -> bool:
        met = all(v.met is not False for _, part in self.parts() for v in part.verdicts())
        return met and all(m.above_buffers <= self.memory_bound for m in self.memory)


def measurements(results: Results) -> list[dict[str, Any]]:
    """As JSON has them."""
    return [
        {
            "ranks": ranks,
            "bytes": size,
            "peer": peer,
            **({"distance": state} if state else {}),
            "median_s": figures.middle(rounds),
            "ratio_to_ours": ratios.get((ranks, peer, size)),
            "rounds_s": rounds,
        }
        for state, part in results.parts()
        for ratios in [part.ratios()]
        for (ranks, peer, size), rounds in part.rounds.items()
    ]


def targets(results: Results) -> list[dict[str, Any]]:
    """As JSON has them."""
    return [
        {"target": _joined(state, str(v.target)), "met": v.met, "misses": v.misses}
        for state, part in results.parts()
        for v in part.verdicts()
    ]


def to_json(results: Results) -> str:
    document: dict[str, Any] = {
        "title": results.title,
        "method": results.method,
        "machine": results.machine,
        "conditions": results.conditions,
        "peers": results.peers,
        "missing": results.missing,
        "failures": results.failures,
        "visits_that_do_not_count": results.unsettled,
        "idle_cores": results.idle,
        "measurements": measurements(results),
        "memory": [vars(m) for m in results.memory],
        "memory_bound": results.memory_bound,
        "targets": targets(results),
    }
    return json.dumps(document, indent=1) + "\n"


def to_markdown(results: Results) -> str:
    parts = [f"# {results.title}", results.method, properties(results), *tables(results)]
    lines = [*verdict_lines(results), *_memory_line(results)]
    parts += ["## Targets", "\n".join(lines)]
    if results.memory:
        parts += ["## Memory above the buffers", _memory(results)]
    parts += not_measured(results.missing, results.failures)
    return "\n\n".join(parts) + "\n"


def tables(results: Results, named: str = "") -> list[str]:
    """One for each number of ranks and state, with headings that begin with `named`."""
    found = []
    for where, ranks, part in panels(results):
        found += [f"## {_joined(named, where)}", _table(part, ranks), *_ways_to_limits(part, ranks)]
    return found


def panels(results: Results) -> list[tuple[str, int, Results]]:
    """What is shown apart: each number of ranks in each state, with what was measured there."""
    return [
        (_joined(f"{ranks} ranks", state), ranks, part)
        for ranks in sorted({key[0] for key in results.rounds})
        for state, part in results.parts()
        if any(key[0] == ranks for key in part.rounds)
    ]


def not_measured(missing: dict[str, str], failures: list[str]) -> list[str]:
    """The part of a report that says so, if there is anything to say."""
    absent = [f"{name}: {one_line(reason)}" for name, reason in missing.items()]
    absent += [one_line(failure) for failure in failures]
    return ["## Not measured", "\n".join(f"- {line}" for line in absent)] if absent else []


def properties(results: Any) -> str:
    both = {**results.machine, **results.conditions}
    lines = [f"- {name}: {value}" for name, value in both.items()]
    peers = ", ".join(f"{name} {version}".strip() for name, version in results.peers.items())
    measured = textwrap.fill(f"- measured: {peers}", 100, subsequent_indent="  ")
    return "\n".join([*lines, measured])


def row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [row(header), "|---" + "|---:" * (len(header) - 1) + "|"]
    return "\n".join([*lines, *map(row, rows)])


def _table(results: Results, ranks: int) -> str:
    peers = [p for p in results.peers if any(k[:2] == (ranks, p) for k in results.rounds)]
    others = [p for p in peers if p != results.ours and results.ours in peers]
    sizes = sorted({key[2] for key in results.rounds if key[0] == ranks})
    ratios = results.ratios()
    rows = []
    for size in sizes:
        cells = [results.labels.get(size, figures.format_size(size))]
        for peer in peers:
            middle = figures.middle(results.rounds.get((ranks, peer, size), []))
            cells.append("–" if middle is None else figures.format_seconds(middle))
        for peer in others:
            wanted = figures.wanted(results.targets, ranks, peer, size)
            cells.append(_ratio_cell(ratios.get((ranks, peer, size)), wanted))
        rows.append(cells)
    return table(["", *peers, *(f"{p} / {results.ours}" for p in others)], rows)


def _ways_to_limits(results: Results, ranks: int) -> list[str]:
    """A table of what each way to a limit takes, if there is one."""
    ways = [way for ways in results.limits.values() for way in ways]
    sizes = sorted({key[2] for key in results.rounds if key[0] == ranks and key[1] in ways})
    rows = []
    for size in sizes:
        times = [figures.middle(results.rounds.get((ranks, way, size), [])) for way in ways]
        cells = ["–" if time is None else figures.format_seconds(time) for time in times]
        rows.append([figures.format_size(size), *cells])
    return [table(["", *ways], rows)] if rows else []


def _joined(*words: str) -> str:
    """Those that say something."""
    return ", ".join(word for word in words if word)


def _ratio_cell(value: float | None, wanted: float | None) -> str:
    if value is None:
        return "–"
    text = f"{value:.2f}" if value < 10 else f"{value:.0f}"
    return f"**{text}** (target {wanted:.2f})" if wanted and value < wanted else text


def verdict_lines(results: Results, named: str = "") -> list[str]:
    """What is said of each target, beginning with `named`."""
    lines = []
    verdicts = [(state, v) for state, part in results.parts() for v in part.verdicts()]
    for state, verdict in verdicts:
        if verdict.met is None:
            outcome = "not measured"
        elif verdict.met:
            outcome = f"met at all {verdict.checked} sizes"
        else:
            where = ", ".join(
                f"{results.labels.get(size, figures.format_size(size))} ({value:.2f})"
                for size, value in verdict.misses
            )
            outcome = f"**NOT MET** at {len(verdict.misses)} of {verdict.checked} sizes: {where}"
        lines.append(f"- {_joined(named, state, str(verdict.target))}: {outcome}")
    return lines


def _memory_line(results: Results) -> list[str]:
    if not results.memory:
        return []
    worst = max(m.above_buffers for m in results.memory)
    outcome = "met" if worst <= results.memory_bound else "**NOT MET**"
    bound = results.memory_bound / figures.MIB
    return [
        f"- memory of a rank above its buffers at most arena + 16 MiB = {bound:.0f} MiB: "
        f"{outcome} (most: {worst / figures.MIB:.1f} MiB)"
    ]


def _memory(results: Results) -> str:
    ranks = sorted({m.ranks for m in results.memory})
    found = {(m.ranks, m.size): m.above_buffers for m in results.memory}
    rows = []
    for size in sorted({m.size for m in results.memory}):
        cells = [figures.format_size(size)]
        for n in ranks:
            cells.append(f"{found[n, size] / figures.MIB:.1f} MiB" if (n, size) in found else "–")
        rows.append(cells)
    return table(["", *(f"{n} ranks" for n in ranks)], rows)


def one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 300 else line[:300] + " …"


def plot(results: Results, path: Path) -> None:
    draw({"": results}, results, path)


def draw(rows: dict[str, Results], what: Any, path: Path) -> None:
    """A row of panels for each of `rows`, by name. `what` has title, machine and peers."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = what.title  # the same ids each time
    lines = {name: panels(results) for name, results in rows.items() if results.rounds}
    columns = max(map(len, lines.values()))
    size = (6.5 * columns, 5 * len(lines))
    figure, axes = plt.subplots(len(lines), columns, figsize=size, squeeze=False)
    for (name, line), of_line in zip(lines.items(), axes, strict=True):
        for axis in of_line[len(line) :]:
            axis.remove()
        for axis, (where, ranks, part) in zip(of_line, line, strict=False):
            _draw_panel(axis, _joined(name, where), ranks, part, what.peers)
    figure.suptitle(f"{what.title}: {what.machine['cpu']}")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _draw_panel(axis: Any, title: str, ranks: int, part: Results, peers: Iterable[str]) -> None:
    for peer in peers:
        points = sorted(
            (size, figures.middle(rounds))
            for (r, p, size), rounds in part.rounds.items()
            if (r, p) == (ranks, peer) and figures.middle(rounds) is not None
        )
        if points:
            style = {"linewidth": 2.5, "color": "black"} if peer == part.ours else {}
            axis.plot(*zip(*points, strict=True), marker="o", markersize=3, label=peer, **style)
    axis.set(xscale="log", yscale="log", title=title, xlabel="bytes", ylabel="seconds")
    axis.set_xscale("log", base=2)
    axis.grid(alpha=0.3)
    axis.legend()


def write(results: Any, stem: Path, with_plot: bool = True, form: Any = None) -> list[Path]:
    """<stem>.json, .md and .svg; returns what was written. `form`: the module that knows how, with
    to_json, to_markdown and plot; this one if not given."""
    form = form or sys.modules[__name__]
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = [stem.with_name(stem.name + ending) for ending in (".json", ".md", ".svg")]
    paths[0].write_text(form.to_json(results))
    paths[1].write_text(form.to_markdown(results))
    if not with_plot:
        return paths[:2]
    try:
        form.plot(results, paths[2])
    except ImportError as error:
        results.failures.append(f"no plot: {error}")
        return paths[:2]
    return paths
