#!/usr/bin/env python3
"""Runs clang-tidy (.clang-tidy) over the sources of the library that a build folder compiles.

cmake --preset analysis && ci/check_tidy.py build/analysis
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_TIDY = Path(sys.executable).parent / "clang-tidy"


def units(build: Path) -> list[str]:
    """What the build's database of commands compiles of the library: files of csrc/, or those that
    CMake has made of a layer each, in which all its sources are included. Most of the time is taken
    by reading the same headers, so that one file of a layer takes a quarter of the time."""
    commands = json.loads((build / "compile_commands.json").read_text())
    files = {Path(command["file"]) for command in commands}
    kept = [path for path in files if path.is_relative_to(ROOT / "csrc") or "Unity" in path.parts]
    return sorted(str(path) for path in kept if not path.stem.endswith(("_test", "_testing")))


def findings(build: Path, unit: str) -> set[str]:
    """What clang-tidy finds in a unit and the files of csrc/ that it includes."""
    # clang deprecates what libstdc++ 12 uses itself, and does not know all of g++'s warnings.
    tolerant = ["-Wno-deprecated-declarations", "-Wno-unknown-warning-option"]
    options = [f"--extra-arg={flag}" for flag in tolerant]
    if "Unity" in Path(unit).parts:
        options.append("--checks=-bugprone-suspicious-include")  # of a .cc, which is what they do
    command = [str(_TIDY), "-p", str(build), "--quiet", *options, unit]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = {line for line in done.stdout.splitlines() if "error:" in line or "warning:" in line}
    if done.returncode and not lines:
        lines = {f"{unit}: clang-tidy failed: {done.stderr.strip()[-500:]}"}
    if any("redefinition of" in line for line in lines):
        lines.add("a layer is read as one source: a name of one file must not be another's")
    return lines


def main() -> int:
    build = Path(sys.argv[1])
    files = units(build)
    if not files:
        print(f"{build}/compile_commands.json names no source of csrc/")
        return 1
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = set().union(*pool.map(lambda unit: findings(build, unit), files))
    print("\n".join(sorted(found)) if found else f"clang-tidy: nothing in {len(files)} units")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
