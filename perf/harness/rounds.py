"""The interleaving: for each size, round after round, every job in turn."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from . import figures
from .distance import Distance, Unsettled, between
from .jobs import Job, JobError, Spec, Way
from .report import Key, Results, Visit

IDLE_WINDOW_S = 0.5
MOST_IDLE_CORES = 0.01  # of each rank: a store of ringcoll looks several times a second
LEAST_ROUNDS = 3
CALIBRATION_S = 0.01
SHORT_S = 0.1  # a longer call is calibrated by its first
LONG_S = 0.5  # where all take longer, that call is the first round

Jobs = dict[str, Job | Way]
T = TypeVar("T")


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@dataclass
class Plan:
    sizes: list[int]
    rounds: int
    budget_s: float  # of one visit to one job
    size_limit_s: float = math.inf  # no new round of a size after this
    one_call: bool = False  # a batch is one call
    # size -> first word of the command's arguments, if not the size itself
    words: dict[int, str] = field(default_factory=dict)
    free_after_visit: bool = False  # the buffers of one job at a time fit into memory
    # called after all rounds of a size with the jobs that are left
    after_size: Callable[[int, Jobs], None] | None = None
    # Times over all sizes, each with its part of the rounds: what changes while one measures is so
    # met at every size.
    passes: int = 1
    # Takes the distance between cores, before and after each visit: one in which it changed does
    # not count.
    take_distance: Callable[[], Distance | None] | None = None


class _Visitor:
    """Visits jobs, and keeps the distance that was taken last: after one visit is before the
    next."""

    def __init__(self, jobs: Jobs, ranks: int, plan: Plan, results: Results) -> None:
        self._jobs, self._ranks, self._plan, self._results = jobs, ranks, plan, results
        self._distance = self._take()

    def _take(self) -> Distance | None:
        return self._plan.take_distance() if self._plan.take_distance else None

    def visit(self, name: str, size: int, visit: tuple[int, int]) -> Visit | None:
        """None: the job is gone, or has failed now."""
        found = _visit(self._jobs, self._ranks, name, size, visit, self._plan, self._results)
        if not found or not self._plan.take_distance:
            return found
        before, self._distance = self._distance, self._take()
        try:
            found.state = between(before, self._distance)
        except Unsettled:
            found.settled = False
        return found


def start_jobs(specs: list[Spec], ranks: int, logs: Path, results: Results) -> Jobs:
    logs.mkdir(parents=True, exist_ok=True)
    jobs: Jobs = {}
    for spec in specs:
        if ranks > spec.most_ranks:
            continue
        progress(f"  start {spec.name}")
        try:
            jobs[spec.name] = Job(spec, ranks, logs)
        except JobError as error:
            _fail(results, f"{ranks} ranks: {error}")
    return jobs


def close_jobs(jobs: Jobs) -> None:
    for job in jobs.values():
        job.close()


def measure_idle(jobs: Jobs, ranks: int, results: Results) -> None:
    """What the jobs take from the one that is measured: it has to be nothing."""
    before = {name: job.processor_seconds() for name, job in jobs.items()}
    time.sleep(IDLE_WINDOW_S)
    for name, job in jobs.items():
        cores = (job.processor_seconds() - before[name]) / IDLE_WINDOW_S
        results.idle[f"{name}, {ranks} ranks"] = round(cores, 3)
        if cores > MOST_IDLE_CORES * ranks:
            _fail(results, f"{name}, {ranks} ranks: takes {cores:.2f} cores while it is idle")


def run_rounds(jobs: Jobs, ranks: int, plan: Plan, results: Results) -> None:
    """Jobs that fail are closed and taken out of `jobs`; the others go on."""
    visitor = _Visitor(jobs, ranks, plan, results)
    for turns in _turns_of_passes(plan):
        for size in plan.sizes:
            _run_size(jobs, ranks, size, turns, plan, visitor, results)


def _turns_of_passes(plan: Plan) -> list[range]:
    """The rounds of each pass, as even as they go."""
    passes = max(1, min(plan.passes, plan.rounds))
    ends = [plan.rounds * (n + 1) // passes for n in range(passes)]
    return [range(first, end) for first, end in zip([0, *ends], ends, strict=False)]


def _run_size(
    jobs: Jobs,
    ranks: int,
    size: int,
    turns: range,
    plan: Plan,
    visitor: _Visitor,
    results: Results,
) -> None:
    deadline = time.monotonic() + plan.size_limit_s / max(1, plan.passes)
    first = _calibrate(jobs, size, plan, visitor)
    expected = {name: visit.seconds for name, visit in first.items()}
    if min(expected.values(), default=0) > LONG_S:
        turns = turns[1:]
        for name, found in first.items():
            _note(results, (ranks, name, size), found)
    for turn in turns:
        if turn >= LEAST_ROUNDS and time.monotonic() > deadline:
            break
        for name in rotated(list(jobs), turn):
            if name not in expected:  # it had failed before
                continue
            visit = figures.plan_visit(expected[name], plan.budget_s, plan.one_call)
            visited = visitor.visit(name, size, visit)
            _note(results, (ranks, name, size), visited)
            expected[name] = visited.seconds if visited else expected[name]
    progress("  " + _line(results, ranks, size, list(jobs)))
    if plan.after_size:
        plan.after_size(size, jobs)


def _note(results: Results, key: Key, found: Visit | None) -> None:
    counts = found is not None and found.settled
    results.rounds.setdefault(key, []).append(found.seconds if found and counts else None)
    results.states.setdefault(key, []).append(found.state if found and counts else "")
    results.unsettled += found is not None and not counts
    if found and counts:
        results.visits.setdefault(key, []).append(found)


def rotated(names: list[T], turn: int) -> list[T]:
    """Each round begins with another job, so that none always follows the same one."""
    shift = turn % max(len(names), 1)
    return names[shift:] + names[:shift]


def _calibrate(jobs: Jobs, size: int, plan: Plan, visitor: _Visitor) -> dict[str, Visit]:
    """The first visits make the buffers, verify the sums, and tell how many calls fit a visit."""
    first = {}
    for name in list(jobs):
        found = visitor.visit(name, size, (1, 1))
        if found and found.seconds < SHORT_S:
            visit = figures.plan_visit(found.seconds, CALIBRATION_S, plan.one_call)
            found = visitor.visit(name, size, visit)
        if found:
            first[name] = found
    return first


def _visit(
    jobs: Jobs,
    ranks: int,
    name: str,
    size: int,
    visit: tuple[int, int],
    plan: Plan,
    results: Results,
) -> Visit | None:
    if name not in jobs:
        return None
    batches, calls = visit
    try:
        word = plan.words.get(size, str(size))
        before = jobs[name].processor_seconds_by_rank()
        answers = jobs[name].ask(f"run {word} {batches} {calls}", "times")
        after = jobs[name].processor_seconds_by_rank()
        if plan.free_after_visit:
            jobs[name].ask("free", "freed")
    except JobError as error:
        _fail(results, f"{ranks} ranks, {_label(results, size)}: {error}")
        jobs.pop(name).kill()
        return None
    by_rank = [[float(seconds) for seconds in answer] for answer in answers]
    spent = [end - begin for begin, end in zip(before, after, strict=True)]
    return Visit(
        figures.batch_seconds(by_rank, calls), calls, sum(spent), processor_of_rank_s=spent
    )


def _label(results: Results, size: int) -> str:
    return results.labels.get(size, figures.format_size(size))


def _line(results: Results, ranks: int, size: int, names: list[str]) -> str:
    cells = [f"{_label(results, size):>8}"]
    for name in names:
        middle = figures.middle(results.rounds.get((ranks, name, size), []))
        cells.append(f"{name} {figures.format_seconds(middle) if middle else '–'}")
    return "   ".join(cells)


def _fail(results: Results, what: str) -> None:
    results.failures.append(what)
    progress(f"  NOT MEASURED: {what}")
