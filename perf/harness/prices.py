"""What ringcoll's own prices say of the cases that are measured."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

from .build import BuildError
from .shapes import Case


def request(case: Case, costs: dict[str, Any], cores: int) -> dict[str, Any] | None:
    """What ringcoll_simulate() is asked for a case whose job measured `costs` (stats()["costs"]) on
    so many cores; None where hosts differ, which it does not know."""
    ranks, levels = case.ranks_of_levels, costs["levels"]
    if ranks is None or len(ranks) != len(levels):
        return None
    described = zip(levels.items(), ranks, strict=True)
    return {
        "collective": "allreduce",
        "levels": [{"level": name, "ranks": each, **cost} for (name, cost), each in described],
        "sizes": list(case.sizes),
        "crowded": case.shape.size > cores,
    }


def seconds(prediction: dict[str, Any]) -> dict[tuple[str, int], float]:
    """By row and size."""
    return {
        (row["name"], line["bytes"]): row["microseconds"] / 1e6
        for line in prediction["sizes"]
        for row in line["rows"]
        if row["microseconds"] is not None
    }


def simulate(library: Path, asked: dict[str, Any]) -> dict[str, Any]:
    loaded = ctypes.CDLL(str(library))
    text = ctypes.c_char_p()
    if loaded.ringcoll_simulate(json.dumps(asked).encode(), ctypes.byref(text)) or not text.value:
        loaded.ringcoll_error_message.restype = ctypes.c_char_p
        raise BuildError(f"{library}: {loaded.ringcoll_error_message().decode()}")
    answer: dict[str, Any] = json.loads(text.value)
    return answer
