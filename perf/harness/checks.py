"""Pure: a target, and by how much what was measured comes to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Check:
    """A target, and by how much each cell that it speaks of comes to it."""

    target: str
    cells: list[tuple[str, float, bool]] = field(default_factory=list)  # where, value, met
    unit: str = ""  # of the values

    def note(self, where: str, value: float | None, met: bool) -> None:
        if value is not None:
            self.cells.append((where, value, met))

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        cells = [{"where": where, "value": value, "met": met} for where, value, met in self.cells]
        return {"target": self.target, "cells": cells}

    def rows(self) -> list[list[str]]:
        """The target, where it was judged, what was measured there, and whether that meets it."""
        if not self.cells:
            return [[self.target, "–", "–", "not measured"]]
        return [
            [
                self.target,
                where,
                f"{value:.2f} {self.unit}".strip(),
                "met" if met else "**NOT MET**",
            ]
            for where, value, met in self.cells
        ]

    def verdict(self) -> str:
        if not self.cells:
            return f"- {self.target}: not measured"
        missed = [f"{where} ({value:.2f})" for where, value, met in self.cells if not met]
        if not missed:
            return f"- {self.target}: met in all {len(self.cells)} cells"
        return (
            f"- {self.target}: **NOT MET** in {len(missed)} of {len(self.cells)} cells: "
            + "; ".join(missed)
        )
