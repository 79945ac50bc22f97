#!/usr/bin/env python3
"""Runs clang-tidy (.clang-tidy) over the sources of the library that a build folder compiles.

cmake --preset analysis && ci/check_tidy.py build/analysis

With --commits N it reads those alone that the newest N commits or the working tree have changed, or
whose header they have.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_TIDY = Path(sys.executable).parent / "clang-tidy"


def sources(build: Path) -> list[str]:
    """Returns the files of csrc/ in the build's compilation database, without tests."""
    commands = json.loads((build / "compile_commands.json").read_text())
    files = {Path(command["file"]) for command in commands}
    kept = [path for path in files if path.is_relative_to(ROOT / "csrc")]
    return sorted(str(path) for path in kept if not path.stem.endswith(("_test", "_testing")))


def changed(sources: list[str], commits: int, root: Path = ROOT) -> list[str]:
    """Returns those of the sources that the newest commits or the working tree have changed, or
    whose headers. Returns all if the rules or the program may have changed, too, or if there is no
    history."""
    words = ["git", "-C", str(root)]
    asked = (
        [*words, "log", f"-{commits}", "--name-only", "--format="],
        [*words, "ls-files", "--modified", "--others", "--exclude-standard"],
    )
    names: set[str] = set()
    for command in asked:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return sources
        names.update(done.stdout.splitlines())
    if names & {".clang-tidy", "ci/requirements.txt"}:
        return sources
    stems = {str(root / Path(name).with_suffix("")) for name in names if name.startswith("csrc/")}
    return [source for source in sources if str(Path(source).with_suffix("")) in stems]


def findings(build: Path, source: str) -> set[str]:
    """Returns what clang-tidy finds in a source and in the headers of csrc/ that it includes."""
    # clang deprecates features that libstdc++ 12 itself uses, and does not know all of g++'s
    # warnings.
    tolerant = ["-Wno-deprecated-declarations", "-Wno-unknown-warning-option"]
    extra = [f"--extra-arg={flag}" for flag in tolerant]
    command = [str(_TIDY), "-p", str(build), "--quiet", *extra, source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = {line for line in done.stdout.splitlines() if "error:" in line or "warning:" in line}
    if done.returncode and not lines:
        lines = {f"{source}: clang-tidy failed: {done.stderr.strip()[-500:]}"}
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=Path)
    parser.add_argument("--commits", type=int, metavar="N")
    args = parser.parse_args()
    build, commits = args.build, args.commits
    files = sources(build)
    if not files:
        print(f"{build}/compile_commands.json names no source of csrc/")
        return 1
    if commits is not None:
        files = changed(files, commits)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = set().union(*pool.map(lambda source: findings(build, source), files))
    print("\n".join(sorted(found)) if found else f"clang-tidy: nothing in {len(files)} sources")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
