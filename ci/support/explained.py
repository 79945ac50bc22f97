"""Reads ci/mutants-explained.toml, which says why no test notices some planted errors.

An entry names an error by its file, the text of the line and the changed text, so it is found again
when lines move.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.mutants import Mutant, Rewrite, candidates, language, lines_of

_KINDS = ("equivalent", "unnoticed")
SHARE = 0.9  # of the errors that are not equivalent, tests must notice this share


@dataclass(frozen=True)
class Entry:
    """`kind` is "equivalent" if no test could notice the error, else "unnoticed"."""

    file: str
    line: str
    changed: str
    kind: str
    why: str

    def is_of(self, mutant: Mutant) -> bool:
        mine = (self.file, self.line.strip(), self.changed.strip())
        return mine == (mutant.line.file, mutant.line.text.strip(), mutant.changed.strip())

    def __str__(self) -> str:
        return f"{self.file}: {self.line.strip()} -> {self.changed.strip()}"


def read(path: Path) -> list[Entry]:
    """Returns the entries of the file. Raises ValueError for a malformed entry."""
    entries = []
    for index, row in enumerate(tomllib.loads(path.read_text()).get("mutant", []), 1):
        try:
            entry = Entry(**row)
        except TypeError as error:
            raise ValueError(f"{path.name}: entry {index}: {error}") from None
        if entry.kind not in _KINDS or not entry.why:
            wanted = f"kind has to be one of {', '.join(_KINDS)}, and why a text"
            raise ValueError(f"{path.name}: entry {index} ({entry}): {wanted}")
        entries.append(entry)
    return entries


def entry_of(mutant: Mutant, entries: Iterable[Entry]) -> Entry | None:
    return next((entry for entry in entries if entry.is_of(mutant)), None)


@dataclass(frozen=True)
class Tally:
    """Errors that were built and tested: how many tests noticed, and what explains the others."""

    noticed: int
    equivalent: int
    unnoticed: int
    unexplained: list[Mutant]

    @property
    def real(self) -> int:
        """The number of errors that are not equivalent."""
        return self.noticed + self.unnoticed + len(self.unexplained)

    @property
    def share(self) -> float:
        return self.noticed / self.real if self.real else 1.0


def tally(noticed: int, lived: Iterable[Mutant], entries: Sequence[Entry]) -> Tally:
    found = {mutant: entry_of(mutant, entries) for mutant in lived}
    kinds = [entry.kind for entry in found.values() if entry]
    unexplained = [mutant for mutant, entry in found.items() if not entry]
    return Tally(noticed, kinds.count("equivalent"), kinds.count("unnoticed"), unexplained)


def objections(tally: Tally, stale: Sequence[str], name: str) -> list[str]:
    """Returns why tests and explanations (the file `name`) are not good enough, if so."""
    found = [f"{name}: {line}" for line in stale]
    if tally.unexplained:
        found.append(f"{name} does not say why {len(tally.unexplained)} lived")
    if tally.share < SHARE:
        found.append(f"{SHARE:.0%} are wanted")
    return found


def _candidates(entry: Entry, source: str, rewrite: Rewrite) -> list[Mutant]:
    """Returns the errors that can be planted in lines that the entry may mean."""
    lines = [
        line for line in lines_of(entry.file, source) if line.text.strip() == entry.line.strip()
    ]
    offered = rewrite([(language(line.file), line.text) for line in lines]) if lines else []
    return [
        mutant
        for line, changes in zip(lines, offered, strict=True)
        for kind in candidates(line, changes)
        for mutant in kind
    ]


def stale(
    entries: Iterable[Entry],
    sources: Mapping[str, str],
    rewrite: Rewrite,
    noticed: Sequence[Mutant],
) -> list[str]:
    """Returns entries whose error was noticed or can no longer be planted, with the reason."""
    found = []
    for entry in entries:
        mutants = _candidates(entry, sources.get(entry.file, ""), rewrite)
        if not any(entry.is_of(mutant) for mutant in mutants):
            found.append(f"{entry}: there is no such line, or nothing makes that of it")
        elif any(entry.is_of(mutant) for mutant in noticed):
            found.append(f"{entry}: a test notices it now")
    return found
