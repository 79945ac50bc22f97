"""What was measured of groups, of shrinks and of calls in flight: tables, and what they say of the
targets."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from . import figures, in_flight, report, shrinks, splits
from .checks import Check
from .figures import KIB, MIB, OURS
from .findings import Findings
from .in_flight import IN_FLIGHT, IN_TURN, ONE, ONE_GROUP, ONE_STARTED, TWO_GROUPS, WAYS, Place
from .shrinks import Shrinks
from .splits import Found, Splits

MOST_SPLIT_S = 2e-3  # of 8 ranks, by shared memory
MOST_UNUSED_BYTES = 256 * KIB
MOST_USED_BYTES = 16 * MIB  # of 64 groups of 4 ranks
MOST_SHRINK_S = 0.2  # of 8 ranks
MOST_OF_ONE = 1.1
LEAST_OF_HALF = 0.9


@dataclass
class SplitsFound:
    """A case of splits, with a job for each round and library; who fails is in no later round."""

    case: Splits
    rounds: dict[str, list[Found]] = field(default_factory=dict)

    def middle(self, library: str, figure: Callable[[Found], float]) -> float | None:
        measured = [figure(found) for found in self.rounds.get(library, [])]
        return median(measured) if measured else None

    def ratio(self, figure: Callable[[Found], float], other: str) -> float | None:
        """The median over rounds of the other library's over ours."""
        ours, others = (
            [figure(found) for found in self.rounds.get(library, [])] for library in (OURS, other)
        )
        return figures.ratio(others, ours)


@dataclass
class ShrinksFound:
    """A case of shrinks, with a job for each round and library; who fails is in no later round."""

    case: Shrinks
    rounds: dict[str, list[shrinks.Found]] = field(default_factory=dict)

    def middle(self, library: str, figure: str) -> float | None:
        measured = [getattr(found, figure) for found in self.rounds.get(library, [])]
        return median(measured) if measured else None


@dataclass
class InFlight:
    """A place, and the times of each library's ways there."""

    place: Place
    results: report.Results
    round_trips: list[str] = field(default_factory=list)  # between cores, before and after

    @property
    def sizes(self) -> list[int]:
        return sorted({size for _, _, size in self.results.rounds})

    def rounds(self, library: str, way: str, size: int) -> list[float | None]:
        ranks = self.place.ranks
        return self.results.rounds.get((ranks, in_flight.key(library, way), size), [])

    def seconds(self, library: str, way: str, size: int) -> float | None:
        return figures.middle(self.rounds(library, way, size))

    def ratio(self, library: str, way: str, to: str, size: int) -> float | None:
        """The median over rounds of the way's time over that of `to`."""
        return figures.ratio(self.rounds(library, way, size), self.rounds(library, to, size))

    def of_ours(self, library: str, way: str, size: int) -> float | None:
        return figures.ratio(self.rounds(library, way, size), self.rounds(OURS, way, size))


@dataclass
class Results(Findings):
    splits: list[SplitsFound] = field(default_factory=list)
    shrinks: list[ShrinksFound] = field(default_factory=list)
    in_flight: list[InFlight] = field(default_factory=list)

    @property
    def rounds(self) -> bool:
        """Whether anything was measured."""
        jobs = any(any(one.rounds.values()) for one in [*self.splits, *self.shrinks])
        return jobs or any(one.results.rounds for one in self.in_flight)

    def checks(self) -> list[Check]:
        """Of ours."""
        return [
            *_of_splits(self.splits),
            *_of_memory(self.splits),
            _of_shrinks(self.shrinks),
            *_of_calls(self.in_flight),
        ]


# --- Targets ---


def _check(
    text: str,
    cases: list[SplitsFound],
    figure: Callable[[Found], float],
    most: float,
) -> Check:
    check = Check(text)
    for one in cases:
        value = one.middle(OURS, figure)
        check.note(str(one.case), value, value is not None and value <= most)
    return check


def _descriptors_of_pairs(cases: list[SplitsFound]) -> Check:
    """A first use talks to every other member."""
    check = Check("tcp: at most one descriptor for each pair that a group uses")
    for one in cases:
        added = one.middle(OURS, lambda found: found.used.descriptors)
        if added is not None:
            value = added / (one.case.pairs * one.case.groups)
            check.note(str(one.case), value, value <= 1)
    return check


def _of_splits(cases: list[SplitsFound]) -> list[Check]:
    by_shm = [one for one in cases if one.case.transport == "shm"]
    of_eight = [one for one in by_shm if (one.case.ranks, one.case.members) == (8, 8)]
    by_tcp = [one for one in cases if one.case.transport == "tcp"]
    return [
        _check(
            "split of 8 ranks by shm: at most 2 ms",
            of_eight,
            lambda found: splits.split_s(found) * 1e3,
            MOST_SPLIT_S * 1e3,
        ),
        _check("no thread is added", cases, lambda found: found.used.threads, 0),
        _check("shm: no descriptor", by_shm, lambda found: found.used.descriptors, 0),
        _descriptors_of_pairs(by_tcp),
        _check(
            "destroyed groups leave no descriptor",
            cases,
            lambda found: found.ended.descriptors,
            0,
        ),
    ]


def _of_memory(cases: list[SplitsFound]) -> list[Check]:
    many = [one for one in cases if (one.case.members, one.case.groups) == (4, 64)]
    return [
        _check(
            "a group that is not used: at most 256 KiB a rank",
            cases,
            lambda found: splits.unused_bytes(found) / KIB,
            MOST_UNUSED_BYTES / KIB,
        ),
        _check(
            "64 groups of 4 ranks, used: at most 16 MiB a rank",
            many,
            lambda found: found.used.rss_bytes / MIB,
            MOST_USED_BYTES / MIB,
        ),
    ]


def _of_shrinks(cases: list[ShrinksFound]) -> Check:
    check = Check(f"shrink of 8 ranks: at most {MOST_SHRINK_S * 1e3:.0f} ms")
    for one in cases:
        seconds = one.middle(OURS, "shrink_s") if one.case.ranks == 8 else None
        if seconds is not None:
            check.note(str(one.case), seconds * 1e3, seconds <= MOST_SHRINK_S)
    return check


def _of_calls(places: list[InFlight]) -> list[Check]:
    of_one = Check(f"{IN_FLIGHT} take at most {MOST_OF_ONE} times what one call as long takes")
    of_half = Check(f"two groups: each at least {LEAST_OF_HALF} times as fast as half of one group")
    for one in places:
        for size in one.sizes:
            where = f"{one.place}, {in_flight.label(size)}"
            ratio = one.ratio(OURS, IN_FLIGHT, ONE, size)
            of_one.note(where, ratio, ratio is not None and ratio <= MOST_OF_ONE)
            share = one.ratio(OURS, ONE_GROUP, TWO_GROUPS, size)
            of_half.note(where, share, share is not None and share >= LEAST_OF_HALF)
    return [of_one, of_half]


# --- Text ---

_MOMENTS = ("split", "used", "started", "ended")


def _number(value: float | None, form: str = ".2f") -> str:
    return "–" if value is None else format(value, form)


def _time(seconds: float | None) -> str:
    return "–" if seconds is None else figures.format_seconds(seconds)


def _timed(seconds: float | None, ratio: float | None) -> str:
    return f"{_time(seconds)} ({_number(ratio)})"


def _split_row(one: SplitsFound, library: str) -> list[str]:
    def added(moment: str, figure: str, unit: int = 1) -> str:
        value = one.middle(library, lambda found: getattr(getattr(found, moment), figure) / unit)
        return _number(value, ".0f")

    def counts(figure: str) -> str:
        return ", ".join(added(moment, figure) for moment in _MOMENTS)

    def memory(moment: str) -> str:
        return ", ".join(added(moment, figure, KIB) for figure in ("rss_bytes", "pss_bytes"))

    cells = [str(one.case), library]
    for figure in (splits.split_s, splits.use_s):
        seconds = one.middle(library, figure)
        is_ours = library == OURS
        cells.append(_time(seconds) if is_ours else _timed(seconds, one.ratio(figure, library)))
    unused = one.middle(library, lambda found: splits.unused_bytes(found) / KIB)
    cells += [counts("threads"), counts("descriptors"), _number(unused, ".0f")]
    return [*cells, memory("split"), memory("used"), memory("ended")]


def _splits_table(results: Results) -> str:
    moments = ", ".join(_MOMENTS)
    header = ["", "", "split", "first use", f"threads: {moments}", f"descriptors: {moments}"]
    header += ["KiB, a group not used", "KiB, PSS: split", "KiB, PSS: used", "KiB, PSS: ended"]
    rows = [_split_row(one, library) for one in results.splits for library in one.rounds]
    return report.table(header, rows)


def _shrinks_table(results: Results) -> str:
    header = ["", "", "noticed", "shrink", "from the loss to the next call's end"]
    rows = [
        [str(one.case), library]
        + [_time(one.middle(library, name)) for name in ("noticed_s", "shrink_s", "whole_s")]
        for one in results.shrinks
        for library in one.rounds
    ]
    return report.table(header, rows)


def _ways_table(one: InFlight, libraries: list[str]) -> str:
    header = ["", ONE, *(f"{way} (/ {ONE})" for way in (ONE_STARTED, IN_TURN, IN_FLIGHT))]
    header += [f"{IN_FLIGHT} / {IN_TURN}", ONE_GROUP, f"{TWO_GROUPS} (speed of each, of half)"]
    rows = []
    for size in one.sizes:
        for name in libraries:
            after = "" if name == OURS else f", {name}"
            cells = [in_flight.label(size) + after, _time(one.seconds(name, ONE, size))]
            for way in (ONE_STARTED, IN_TURN, IN_FLIGHT):
                cells.append(_timed(one.seconds(name, way, size), one.ratio(name, way, ONE, size)))
            cells.append(_number(one.ratio(name, IN_FLIGHT, IN_TURN, size)))
            cells.append(_time(one.seconds(name, ONE_GROUP, size)))
            share = one.ratio(name, ONE_GROUP, TWO_GROUPS, size)
            cells.append(_timed(one.seconds(name, TWO_GROUPS, size), share))
            rows.append(cells)
    return report.table(header, rows)


def _before_table(one: InFlight, before: str) -> str:
    rows = [
        [in_flight.label(size), *(_number(one.of_ours(before, way, size)) for way in WAYS)]
        for size in one.sizes
    ]
    return report.table([f"{before} / {OURS}", *WAYS], rows)


def _distances(one: InFlight) -> str:
    return (
        f"A cache line between two cores and back, before and after: {', '.join(one.round_trips)}."
    )


def to_markdown(results: Results) -> str:
    libraries = list(results.peers)
    parts = [f"# {results.title}", results.method, report.properties(results)]
    if results.splits:
        parts += ["## Splits", _splits_table(results)]
    if results.shrinks:
        parts += ["## Shrinks", _shrinks_table(results)]
    for one in results.in_flight:
        parts += [f"## Calls in flight: {one.place}", _distances(one), _ways_table(one, libraries)]
        parts += [_before_table(one, name) for name in libraries if name != OURS]
    parts += ["## Targets", "\n".join(check.verdict() for check in results.checks())]
    parts += report.not_measured(results.missing, results.failures)
    return "\n\n".join(parts) + "\n"


# --- JSON ---


def _split_document(one: SplitsFound, library: str) -> dict[str, Any]:
    return {
        "case": str(one.case),
        "library": library,
        "split_s": one.middle(library, splits.split_s),
        "split_of_ours": one.ratio(splits.split_s, library),
        "rounds": [dataclasses.asdict(found) for found in one.rounds[library]],
    }


def _shrink_document(one: ShrinksFound, library: str) -> dict[str, Any]:
    return {
        "case": str(one.case),
        "library": library,
        "shrink_s": one.middle(library, "shrink_s"),
        "rounds": [dataclasses.asdict(found) for found in one.rounds[library]],
    }


def _call_document(one: InFlight, library: str, way: str, size: int) -> dict[str, Any]:
    return {
        "place": str(one.place),
        "library": library,
        "way": way,
        "bytes": size,
        "median_s": one.seconds(library, way, size),
        "of_one": one.ratio(library, way, ONE, size),
        "of_ours": one.of_ours(library, way, size),
        "rounds_s": one.rounds(library, way, size),
    }


def to_json(results: Results) -> str:
    document = results.document()
    document["round_trips"] = {str(one.place): one.round_trips for one in results.in_flight}
    document["idle_cores"] = {
        f"{one.place}: {job}": cores
        for one in results.in_flight
        for job, cores in one.results.idle.items()
    }
    document["splits"] = [
        _split_document(one, library) for one in results.splits for library in one.rounds
    ]
    document["shrinks"] = [
        _shrink_document(one, library) for one in results.shrinks for library in one.rounds
    ]
    document["in_flight"] = [
        _call_document(one, library, way, size)
        for one in results.in_flight
        for size in one.sizes
        for library in results.peers
        for way in WAYS
    ]
    document["targets"] = [
        {"target": check.target, "cells": check.cells} for check in results.checks()
    ]
    return json.dumps(document, indent=1) + "\n"
