"""What was measured of several collectives, as JSON, as Markdown tables and as a plot."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import report
from .findings import Findings


@dataclass
class Results(Findings):
    of: dict[str, report.Results] = field(default_factory=dict)  # by collective

    @property
    def rounds(self) -> bool:
        """Whether anything was measured."""
        return any(one.rounds for one in self.of.values())


def to_json(results: Results) -> str:
    def each(what: Any) -> list[dict[str, Any]]:
        return [
            {"collective": name, **row} for name, one in results.of.items() for row in what(one)
        ]

    document = results.document()
    document["visits_that_do_not_count"] = sum(one.unsettled for one in results.of.values())
    document["idle_cores"] = {name: one.idle for name, one in results.of.items()}
    document["measurements"] = each(report.measurements)
    document["targets"] = each(report.targets)
    return json.dumps(document, indent=1) + "\n"


def to_markdown(results: Results) -> str:
    parts = [f"# {results.title}", results.method, report.properties(results)]
    lines = []
    for name, one in results.of.items():
        parts += report.tables(one, name)
        lines += report.verdict_lines(one, name)
    parts += ["## Targets", "\n".join(lines)]
    parts += report.not_measured(results.missing, results.failures)
    return "\n\n".join(parts) + "\n"


def plot(results: Results, path: Path) -> None:
    report.draw(results.of, results, path)
