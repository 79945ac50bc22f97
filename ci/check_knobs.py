#!/usr/bin/env python3
"""Checks documents and comments about knobs against the library's table of knobs.

docs/knobs.md must equal the output of `ringcoll info --knobs-markdown`. The owner that a row names
must read the knob. The comment at the field of `Config` must state the row's owner and agreement.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = "csrc/base/config.h"


def difference(written: str, generated: str) -> list[str]:
    """Returns the lines of a unified diff; none if only space at the end differs."""
    pages = [text.rstrip().splitlines() for text in (written, generated)]
    return list(difflib.unified_diff(*pages, "docs/knobs.md", "generated", lineterm=""))


def field_of(knob: dict[str, str]) -> str:
    return knob["name"].removeprefix("RINGCOLL_").lower()


def _sources(root: Path, owner: str) -> Iterator[Path]:
    """The product sources of the layer or transport with that name."""
    for folder in (root / "csrc" / owner, root / "csrc" / "transport" / owner):
        for path in folder.rglob("*"):
            if path.suffix in {".h", ".cc"} and not path.stem.endswith(("_test", "_testing")):
                yield path


def false_owners(knobs: list[dict[str, str]], root: Path) -> list[str]:
    """Returns the knobs whose owner has no line that reads their field of a `Config`."""
    found = []
    for knob in knobs:
        reads = re.compile(rf"config\w*(?:\(\))?(?:\.|->){field_of(knob)}\b")
        if not any(reads.search(path.read_text()) for path in _sources(root, knob["owner"])):
            found.append(f"{knob['name']}: nothing of its owner, {knob['owner']}, reads it")
    return found


def false_comments(knobs: list[dict[str, str]], header: str) -> list[str]:
    """Returns the knobs whose field has a comment that contradicts the row."""
    found = []
    for knob in knobs:
        said = re.search(rf"\b{field_of(knob)}(?: = [\w-]+)?;\s+// (.*)", header)
        wanted = f"{knob['owner']}, {knob['agreement']}: "
        if not said or not said.group(1).startswith(wanted):
            found.append(f'{HEADER}: the comment of {field_of(knob)} begins with "{wanted}"')
    return found


def _info(form: str) -> str:
    """Returns the output of `ringcoll info` without any knob set."""
    program = Path(sys.executable).parent / "ringcoll"
    env = {name: value for name, value in os.environ.items() if not name.startswith("RINGCOLL_")}
    done = subprocess.run(
        [program, "info", form], env=env, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"ringcoll info {form} failed: {done.stderr}")
    return done.stdout


def main() -> int:
    page = ROOT / "docs" / "knobs.md"
    generated, knobs = _info("--knobs-markdown"), json.loads(_info("--json"))["knobs"]
    if "--write" in sys.argv:
        page.write_text(generated.rstrip() + "\n")
    stale = difference(page.read_text() if page.exists() else "", generated)
    wrong = false_owners(knobs, ROOT) + false_comments(knobs, (ROOT / HEADER).read_text())
    print("\n".join(stale) if stale else "knobs: docs/knobs.md is true")
    if stale:
        print("to mend it: .venv/bin/python ci/check_knobs.py --write")
    print("\n".join(wrong) if wrong else "knobs: owners read them, and their fields say so")
    return 1 if stale or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
