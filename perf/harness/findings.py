"""What every report says besides its measurements."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Findings:
    """Of one run of a program. What it measured is a report's own."""

    title: str
    method: str
    machine: dict[str, str]
    peers: dict[str, str] = field(default_factory=dict)  # name -> version
    conditions: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)  # peer -> why
    failures: list[str] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """These fields, with which a report's JSON begins."""
        names = ("title", "method", "machine", "conditions", "peers", "missing", "failures")
        return {name: getattr(self, name) for name in names}
