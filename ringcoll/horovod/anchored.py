"""Anchored edits: changes to files of another project that hold none of its text.

An edit names a file, a regular expression that must match exactly once in the file as it came, and
what is put before, after or in place of the match. All edits of a file are matched against the
same original text, so that none depends on another's result.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


class EditError(RuntimeError):
    """An edit that does not fit: the source is not the one it was written for."""


@dataclass(frozen=True)
class Edit:
    file: str
    pattern: str
    text: str
    place: Literal["before", "after", "instead"] = "after"

    def span(self, original: str) -> tuple[int, int]:
        """Where the original is cut; raises EditError unless the pattern matches exactly once."""
        matches = list(re.finditer(self.pattern, original, re.MULTILINE))
        if len(matches) != 1:
            raise EditError(
                f"{self.file}: the pattern {self.pattern!r} matches {len(matches)} times, not "
                "once; the source is not the one this edit was written for"
            )
        start, end = matches[0].span()
        return {"before": (start, start), "after": (end, end), "instead": (start, end)}[self.place]


def apply_to_text(original: str, edits: Iterable[Edit]) -> str:
    """The text with the edits (all of one file) made."""
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
    """Makes the edits below `root`; writes nothing unless all fit. Returns the files changed."""
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
