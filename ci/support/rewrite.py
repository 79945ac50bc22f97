"""Runs in .venv, which has universalmutator: lines in, for each what its rules make of it out.

Reads [[language, line], ...] as JSON from standard input and prints [[line, ...], ...]. Beside
universalmutator's own rules, a line in a comment or a text is rewritten like any other: what is
worth planting is decided by support/mutants.py.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys

from universalmutator import mutator

RULES = {
    "c++": ["universal.rules", "c_like.rules", "cpp.rules"],
    "python": ["universal.rules", "python.rules"],
}


def rewritten(language: str, line: str) -> list[str]:
    """The lines that may stand in the place of `line`; one may be of several lines."""
    with contextlib.redirect_stdout(io.StringIO()):  # it tells of the rules, each time
        found = mutator.mutants_regexp([line + "\n"], RULES[language], ignorePatterns=[])
    return [changed.rstrip("\n") for _, changed, *_ in found]


if __name__ == "__main__":
    json.dump([rewritten(language, line) for language, line in json.load(sys.stdin)], sys.stdout)
