#!/usr/bin/env python3
"""Checks that docs/knobs.md is what `ringcoll info --knobs-markdown` prints."""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from pathlib import Path


def difference(written: str, generated: str) -> list[str]:
    """Lines of a unified diff; empty if they are equal but for space at the end."""
    pages = [text.rstrip().splitlines() for text in (written, generated)]
    return list(difflib.unified_diff(*pages, "docs/knobs.md", "generated", lineterm=""))


def main() -> int:
    page = Path(__file__).resolve().parent.parent / "docs" / "knobs.md"
    program = Path(sys.executable).parent / "ringcoll"
    env = {name: value for name, value in os.environ.items() if not name.startswith("RINGCOLL_")}
    done = subprocess.run(
        [program, "info", "--knobs-markdown"], env=env, capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(f"ringcoll info --knobs-markdown failed: {done.stderr}")
        return 1
    if "--write" in sys.argv:
        page.write_text(done.stdout.rstrip() + "\n")
    found = difference(page.read_text() if page.exists() else "", done.stdout)
    print("\n".join(found) if found else "knobs: docs/knobs.md is true")
    if found:
        print("to mend it: .venv/bin/python ci/check_knobs.py --write")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
