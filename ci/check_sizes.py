#!/usr/bin/env python3
"""Checks the sizes that keep the code readable.

A file has at most 600 lines. A function has at most 80 lines and a cyclomatic complexity of 15, as
counted by lizard.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

FILE_LINES = 600
FUNCTION_LINES = 80
COMPLEXITY = 15
FOLDERS = ["csrc", "ringcoll", "compat", "tests", "perf", "ci", "examples", "docs"]
SUFFIXES = {".h", ".cc", ".cpp", ".c", ".py", ""}


def _files(root: Path) -> Iterator[Path]:
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and path.suffix in SUFFIXES and "__pycache__" not in path.parts:
                yield path


def long_files(root: Path) -> list[str]:
    """Returns files that are too long, as "file: N lines"."""
    found = []
    for path in _files(root):
        lines = path.read_bytes().count(b"\n")
        if lines > FILE_LINES:
            found.append(f"{path.relative_to(root)}: {lines} lines, at most {FILE_LINES}")
    return found


def large_functions(root: Path) -> list[str]:
    """Returns lizard's warnings, as "file:line: warning: ..."."""
    folders = [folder for folder in FOLDERS if (root / folder).is_dir()]
    limits = ["-w", "-T", f"nloc={FUNCTION_LINES}", "-C", str(COMPLEXITY)]
    command = [sys.executable, "-m", "lizard", "-l", "cpp", "-l", "python", *limits, *folders]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if "No module named" in done.stderr:
        raise SystemExit("lizard is not installed in " + sys.executable)
    return [line for line in done.stdout.splitlines() if ": warning:" in line]


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    found = long_files(root) + large_functions(root)
    print("\n".join(found) if found else "sizes: no file or function is too large")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
