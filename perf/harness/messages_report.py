"""What was measured of messages with tags: tables, and what they say of the targets."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from . import figures, messages, report
from .figures import OURS, Verdict
from .findings import Findings
from .messages import PING, RANKS


@dataclass
class Sent:
    """By one transport, in one way."""

    transport: str
    way: str
    results: report.Results

    @property
    def sizes(self) -> list[int]:
        return sorted({size for _, _, size in self.results.rounds})

    def seconds(self, peer: str, size: int) -> float | None:
        """Of one message."""
        of_call = figures.middle(self.results.rounds.get((RANKS, peer, size), []))
        return None if of_call is None else messages.message_s(self.way, of_call)

    def verdicts(self) -> list[Verdict]:
        return self.results.verdicts()


@dataclass
class Results(Findings):
    sent: list[Sent] = field(default_factory=list)

    @property
    def rounds(self) -> bool:
        """Whether anything was measured."""
        return any(one.results.rounds for one in self.sent)


def _cell(one: Sent, peer: str, size: int) -> str:
    seconds = one.seconds(peer, size)
    if seconds is None:
        return "–"
    text = figures.format_seconds(seconds)
    if one.way != PING:
        text = f"{size / seconds / 1e6:,.0f} MB/s, {text}"
    ratio = one.results.ratios().get((RANKS, peer, size))
    return text if ratio is None else f"{text} ({ratio:.2f})"


def _table(one: Sent, peers: list[str]) -> str:
    header = ["", *(peer if peer == OURS else f"{peer} (/ {OURS})" for peer in peers)]
    rows = [
        [figures.format_size(size), *(_cell(one, peer, size) for peer in peers)]
        for size in one.sizes
    ]
    return report.table(header, rows)


def _verdict(one: Sent, verdict: Verdict) -> str:
    text = f"- {one.way}, {one.transport}, {verdict.target}"
    if verdict.met is None:
        return f"{text}: not measured"
    if verdict.met:
        return f"{text}: met in all {verdict.checked} cells"
    missed = "; ".join(
        f"{figures.format_size(size)} ({value:.2f})" for size, value in verdict.misses
    )
    return f"{text}: **NOT MET** in {len(verdict.misses)} of {verdict.checked} cells: {missed}"


def to_markdown(results: Results) -> str:
    parts = [f"# {results.title}", results.method, report.properties(results)]
    for one in results.sent:
        parts += [f"## {one.way}, {one.transport}", _table(one, list(results.peers))]
    lines = [_verdict(one, verdict) for one in results.sent for verdict in one.verdicts()]
    parts += ["## Targets", "\n".join(lines)]
    parts += report.not_measured(results.missing, results.failures)
    return "\n\n".join(parts) + "\n"


def to_json(results: Results) -> str:
    document = results.document()
    document["messages"] = [
        {
            "transport": one.transport,
            "way": one.way,
            "bytes": size,
            "peer": peer,
            "message_s": one.seconds(peer, size),
            "ratio_to_ours": one.results.ratios().get((RANKS, peer, size)),
            "rounds_of_calls_s": rounds,
        }
        for one in results.sent
        for (_, peer, size), rounds in one.results.rounds.items()
    ]
    document["targets"] = [
        {
            "transport": one.transport,
            "way": one.way,
            "target": str(verdict.target),
            "met": verdict.met,
            "misses": verdict.misses,
        }
        for one in results.sent
        for verdict in one.verdicts()
    ]
    return json.dumps(document, indent=1) + "\n"
