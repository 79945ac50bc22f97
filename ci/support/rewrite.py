"""Applies universalmutator's rules to lines. Runs in .venv, which has universalmutator.

Reads [[language, line], ...] as JSON from standard input and prints [[line, ...], ...]. Unlike
universalmutator, it also rewrites comments and texts: support/mutants.py decides what is worth
planting.
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
    """Returns the replacements of `line`; a replacement may have several lines."""
    with contextlib.redirect_stdout(io.StringIO()):  # it prints its rules each time
        found = mutator.mutants_regexp([line + "\n"], RULES[language], ignorePatterns=[])
    return [changed.rstrip("\n") for _, changed, *_ in found]


if __name__ == "__main__":
    json.dump([rewritten(language, line) for language, line in json.load(sys.stdin)], sys.stdout)
