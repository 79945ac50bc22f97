"""Anchored edits: changes to another project's files that do not copy its text.

An edit has a file, a regular expression, and a text that goes before, after or in place of the
match. The expression must match exactly once in the original file. All edits of a file are matched
against the original text, so no edit depends on another one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


class EditError(RuntimeError):
    """An edit does not fit: the source is not the one that it was written for."""


@dataclass(frozen=True)
class Edit:
    file: str
    pattern: str
    text: str
    place: Literal["before", "after", "instead"] = "after"

    def span(self, original: str) -> tuple[int, int]:
        """The range of the original that the text replaces; it is empty for "before" and "after".
        Raises EditError unless the pattern matches exactly once."""
        matches = list(re.finditer(self.pattern, original, re.MULTILINE))
        if len(matches) != 1:
            raise EditError(
                f"{self.file}: the pattern {self.pattern!r} matches {len(matches)} times, not "
                "once; the source is not the one this edit was written for"
            )
        start, end = matches[0].span()
        return {"before": (start, start), "after": (end, end), "instead": (start, end)}[self.place]


def apply_to_text(original: str, edits: Iterable[Edit]) -> str:
    """The text after all edits, which belong to one file. Raises EditError."""
    cuts = sorted(((edit.span(original), edit) for edit in edits), key=lambda cut: cut[0])
    pieces = []
    position = 0
    for (start, end), edit in cuts:
        if start < position:
            raise EditError(f"{edit.file}: the edit at {edit.pattern!r} overlaps the one before it")
        pieces += [original[position:start], edit.text]
        position = end
    return "".join([*pieces, original[position:]])


def apply(root: Path, edits: Iterable[Edit]) -> list[str]:
    """Makes the edits below `root`, and returns the names of the changed files. Raises EditError,
    and then has changed nothing, if an edit does not fit."""
    by_file: dict[str, list[Edit]] = {}
    for edit in edits:
        by_file.setdefault(edit.file, []).append(edit)
    changed = {}
    for name, group in by_file.items():
        path = root / name
        if not path.is_file():
            raise EditError(f"{name}: there is no such file; the pattern was {group[0].pattern!r}")
        changed[path] = apply_to_text(path.read_text(encoding="utf-8"), group)
    for path, text in changed.items():
        path.write_text(text, encoding="utf-8")
    return sorted(by_file)
