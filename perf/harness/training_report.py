"""What steps of training took, and what of the processors, as JSON and as Markdown."""

from __future__ import annotations

import json

from . import figures, report
from .report import Key, Results

ALONE, WAITING = "rank 0 computes, nobody waits", "rank 0 computes, the others wait"


def processor_seconds(results: Results, key: Key) -> float | None:
    """Of all ranks, for a step; over all visits, as ticks of 10 ms are coarse."""
    visits = results.visits.get(key, [])
    steps = sum(visit.calls * len(visit.calls_s) for visit in visits)
    return sum(visit.processor_s for visit in visits) / steps if steps else None


def slowed(results: Results, ranks: int, peer: str) -> float | None:
    """How much longer rank 0 computes while others wait for it."""
    of = {label: size for size, label in results.labels.items()}
    rounds = [results.rounds.get((ranks, peer, of[label]), []) for label in (WAITING, ALONE)]
    return figures.ratio(*rounds)


def to_json(results: Results) -> str:
    document = json.loads(report.to_json(results))
    for row in document["measurements"]:
        key = (row["ranks"], row["peer"], row["bytes"])
        row["case"] = results.labels[row.pop("bytes")]
        row["processor_s"] = processor_seconds(results, key)
    return json.dumps(document, indent=1) + "\n"


def to_markdown(results: Results) -> str:
    parts = [report.to_markdown(results)]
    for ranks in sorted({key[0] for key in results.rounds}):
        peers = [peer for peer in results.peers if (ranks, peer) in {k[:2] for k in results.rounds}]
        parts.append(f"## Processor time of a step, all {ranks} ranks\n")
        parts.append(_processor_table(results, ranks, peers))
        parts.append("\nWhile others wait for it, rank 0 takes so many times as long as alone: ")
        found = [(peer, slowed(results, ranks, peer)) for peer in peers]
        texts = [f"{peer} {value:.2f}" for peer, value in found if value is not None]
        parts.append(", ".join(texts) + ".\n")
    return "\n".join(parts)


def _processor_table(results: Results, ranks: int, peers: list[str]) -> str:
    rows = []
    for size, label in results.labels.items():
        cells = [label]
        for peer in peers:
            found = processor_seconds(results, (ranks, peer, size))
            cells.append("–" if found is None else figures.format_seconds(found))
        rows.append(cells)
    return report.table(["", *peers], rows)
