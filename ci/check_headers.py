#!/usr/bin/env python3
"""Checks that each header of csrc/ compiles alone, and that the installed header compiles in every
C and C++ standard that a caller may use.

If a header's own source includes it first, that source proves that the header compiles alone,
wherever the source is compiled without precompiled headers. Builds for a release and clang-tidy do
so. Such headers are not compiled again here.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def _include_flags(root: Path) -> list[str]:
    flags = ["-I", str(root / "csrc"), "-I", str(root / "csrc" / "include")]
    flags += ["-isystem", sysconfig.get_paths()["include"]]
    try:
        import pybind11
    except ImportError:
        return flags
    return [*flags, "-isystem", pybind11.get_include()]


# The warnings of CMakeLists.txt; a caller may use stricter ones.
_OURS = ["-Wall", "-Wextra", "-Wno-missing-field-initializers"]
_CALLERS = ["-Wall", "-Wextra", "-pedantic"]


def _compile(root: Path, header: Path, language: list[str], warnings: list[str]) -> str:
    """Returns "" if the header compiles alone, else the compiler's messages."""
    command = ["g++" if "c++" in language else "gcc", "-fsyntax-only", "-fvisibility=hidden"]
    command += [*warnings, "-Werror", "-DFMT_HEADER_ONLY", *_include_flags(root)]
    # The header is included twice from an empty source, so that a missing guard is also found.
    text = f'#include "{header}"\n#include "{header}"\n'
    done = subprocess.run(
        [*command, *language, "-"], input=text, capture_output=True, text=True, check=False
    )
    return done.stderr if done.returncode else ""


def _leads_its_source(header: Path) -> bool:
    """True if x.cc includes x.h first. Only tests compile the helpers of tests."""
    source = header.with_suffix(".cc")
    if header.stem.endswith("_testing") or not source.exists():
        return False
    if not re.search(r"^#pragma once$", header.read_text(), re.MULTILINE):
        return False
    first = re.search(r'^#include [<"](.*)[">]', source.read_text(), re.MULTILINE)
    return first is not None and header.match(first[1])


def failures(root: Path) -> dict[str, str]:
    """Returns the headers that do not compile alone, with the compiler's messages."""
    jobs = [
        (header, ["-x", "c++", "-std=c++20"], _OURS)
        for header in sorted((root / "csrc").rglob("*.h"))
        if not _leads_its_source(header)
    ]
    installed = root / "csrc" / "include" / "ringcoll" / "ringcoll.h"
    if installed.exists():
        jobs += [(installed, ["-x", "c", f"-std={std}"], _CALLERS) for std in ("c99", "c11")]
        jobs += [(installed, ["-x", "c++", f"-std={std}"], _CALLERS) for std in ("c++11", "c++20")]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        said = pool.map(lambda job: _compile(root, *job), jobs)
        return {
            f"{header.relative_to(root)} ({language[1]})": text
            for (header, language, _), text in zip(jobs, said, strict=True)
            if text
        }


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    found = failures(root)
    for header, text in found.items():
        print(f"{header} does not compile alone:\n{text}")
    if not found:
        print("headers: each compiles alone")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
