"""How many calls Horovod makes of a step's gradients: what it fused, read off a timeline."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from .jobs import Job, JobError, Spec

_STEPS = 40


def count_calls(events: list[dict[str, Any]], activity: str) -> int:
    """Calls of `activity` in a timeline: of one that is fused all tensors begin before any ends."""
    under_way, calls = 0, 0
    rows: dict[Any, list[bool]] = {}  # of each tensor, whether what it is in is the activity
    for event in events:
        row = rows.setdefault(event.get("pid"), [])
        if event.get("ph") == "B":
            row.append(event.get("name") == activity)
            calls += row[-1] and under_way == 0
            under_way += row[-1]
        elif event.get("ph") == "E" and row:
            under_way -= row.pop()
    return calls


def _calls_in(timeline: Path, activity: str) -> int:
    return count_calls(json.loads(timeline.read_text()), activity)


def calls_of_a_step(spec: Spec, ranks: int, word: str, folder: Path) -> float:
    """Of a Horovod job: `word` is the case for its driver. Raises JobError."""
    folder.mkdir(parents=True, exist_ok=True)
    activity = f"{spec.environment['HOROVOD_CPU_OPERATIONS']}_ALLREDUCE"
    calls = []
    for steps in (1, 1 + _STEPS):  # what comes before the steps is in both
        timeline = folder / f"timeline-{spec.name}-{steps}.json"
        timeline.unlink(missing_ok=True)
        named = {**spec.environment, "HOROVOD_TIMELINE": str(timeline)}
        with Job(replace(spec, environment=named), ranks, folder) as job:
            job.ask(f"run {word} {steps} 1", "times")
        try:
            calls.append(_calls_in(timeline, activity))
        except (OSError, ValueError) as error:
            raise JobError(f"{spec.name}: its timeline cannot be read: {error}") from None
    return (calls[1] - calls[0]) / _STEPS
