"""What starts took, as JSON and as Markdown tables, and what it is held against."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from . import report
from .findings import Findings
from .starts import COUNTING, Case, Start

MOST_SECONDS, MOST_SECONDS_RANKS = 5.0, 1024
MOST_OUTCOME_BYTES = 200  # of a rank in a round
KIB = 1024


@dataclass
class Counted:
    """Exchanges by themselves: what they ask of a store."""

    ranks: int
    blob_bytes: list[int]
    counts: dict[str, Any]


@dataclass
class Results(Findings):
    rounds: dict[Case, list[Start]] = field(default_factory=dict)
    counted: list[Counted] = field(default_factory=list)

    def seconds(self, case: Case) -> float:
        return median(start.seconds for start in self.rounds[case])


def to_json(results: Results) -> str:
    starts = [
        {**dataclasses.asdict(case), "starts": [dataclasses.asdict(start) for start in starts]}
        for case, starts in results.rounds.items()
    ]
    document = results.document()
    document["starts"] = starts
    document["counted"] = [dataclasses.asdict(one) for one in results.counted]
    document["targets"] = [{"target": text, "met": met} for text, met, _ in verdicts(results)]
    return json.dumps(document, indent=1) + "\n"


def to_markdown(results: Results) -> str:
    parts = [f"# {results.title}", results.method, report.properties(results)]
    parts += ["## Time, descriptors, memory", _starts(results), "## At the store", _store(results)]
    if results.counted:
        parts += ["## Exchanges alone", _counted(results)]
    parts += ["## Targets", _verdicts(results)]
    parts += report.not_measured(results.missing, results.failures)
    return "\n\n".join(parts) + "\n"


def _table(head: list[str], rows: list[list[str]]) -> str:
    rule = "|---" * 3 + "|---:" * (len(head) - 3) + "|"
    return "\n".join([report.row(head), rule, *map(report.row, rows)])


def _starts(results: Results) -> str:
    head = ["ranks", "transport", "store", "time", "processor time", "descriptors"]
    head += ["after a gather", "memory"]
    rows = []
    for case, starts in results.rounds.items():
        if case.store == COUNTING:
            continue
        last = starts[-1]
        rows.append(
            [
                str(case.ranks),
                case.transport,
                case.store,
                f"{results.seconds(case):.2f} s",
                f"{median(start.processor_s for start in starts):.1f} s",
                _of_processes(last.descriptors),
                _of_processes(last.after_gather),
                " / ".join(f"{kib:.0f}" for kib in _first_and_rest(last.kib)) + " KiB",
            ]
        )
    return _table(head, rows)


def _first_and_rest(values: list[float]) -> list[float]:
    """Rank 0's, where it has a process of its own, and the most of the others'."""
    return values if len(values) == 1 else [values[0], max(values[1:])]


def _of_processes(values: list[float]) -> str:
    return " / ".join(f"{value:.1f}" for value in _first_and_rest(values))


def _store(results: Results) -> str:
    head = ["ranks", "transport", "store", "requests of a rank", "bytes of an outcome"]
    head += ["of it a rank and round"]
    rows = []
    for case, starts in results.rounds.items():
        counted = starts[-1].at_store
        if not counted.get("outcomes"):
            continue
        outcomes = counted["outcomes"]
        rows.append(
            [
                str(case.ranks),
                case.transport,
                case.store,
                f"{sum(counted['requests'].values()) / case.ranks:.1f}",
                ", ".join(f"{bytes:,}" for bytes in outcomes),
                ", ".join(f"{bytes / case.ranks:.0f}" for bytes in outcomes),
            ]
        )
    return _table(head, rows)


def _counted(results: Results) -> str:
    head = ["ranks", "rounds", "each rank says", "requests of rank 0", "most of another"]
    head += ["of all", "bytes that all set", "bytes of an outcome", "of it a rank"]
    rows = []
    for one in results.counted:
        outcomes = one.counts["outcomes"]
        rows.append(
            [
                str(one.ranks),
                str(len(outcomes)),
                ", ".join(f"{bytes} B" for bytes in one.blob_bytes),
                str(one.counts["of_rank_0"]),
                str(one.counts["most_of_another"]),
                str(sum(one.counts["requests"].values())),
                f"{one.counts['bytes_set']:,}",
                ", ".join(f"{bytes:,}" for bytes in outcomes),
                ", ".join(f"{bytes / one.ranks:.0f}" for bytes in outcomes),
            ]
        )
    return _table(head, rows)


def verdicts(results: Results) -> list[tuple[str, bool | None, str]]:
    """What is asked for, whether it is so (None: not measured), and where it is not. Exchanges
    alone are of random bytes: what is compressed of real ones is not judged by them."""
    times = {
        str(case): results.seconds(case)
        for case in results.rounds
        if case.ranks == MOST_SECONDS_RANKS and case.store != COUNTING
    }
    slow = [f"{name} ({took:.1f} s)" for name, took in times.items() if took > MOST_SECONDS]
    shares = {
        f"{case}, round {i + 1}": bytes / case.ranks
        for case, starts in results.rounds.items()
        for i, bytes in enumerate(starts[-1].at_store.get("outcomes", []))
    }
    long = [f"{name} ({share:.0f})" for name, share in shares.items() if share > MOST_OUTCOME_BYTES]
    return [
        (
            f"{MOST_SECONDS_RANKS} ranks start in at most {MOST_SECONDS:g} s",
            not slow if times else None,
            ", ".join(slow),
        ),
        (
            f"an outcome has at most {MOST_OUTCOME_BYTES} bytes a rank and round",
            not long if shares else None,
            ", ".join(long),
        ),
    ]


def _verdicts(results: Results) -> str:
    words = {None: "not measured", True: "met", False: "**NOT MET**: "}
    return "\n".join(f"- {text}: {words[met]}{why}" for text, met, why in verdicts(results))
