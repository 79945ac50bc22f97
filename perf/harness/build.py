"""Compiles what the harness starts, into build/perf, from this checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

PERF = Path(__file__).resolve().parent.parent
CHECKOUT = PERF.parent
DRIVERS = PERF / "drivers"
INCLUDE = CHECKOUT / "csrc/include"  # of ringcoll/ringcoll.h
C_FLAGS = ["-std=gnu11", "-O3", "-Wall", f"-I{PERF}", f"-I{DRIVERS}"]


class BuildError(Exception):
    """A program could not be made; the message says what to do."""


def run(command: list[str], what: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        tail = "\n".join((result.stdout + result.stderr).strip().splitlines()[-15:])
        raise BuildError(f"{what}: {' '.join(command)} ended with {result.returncode}\n{tail}")


def compile_c(compiler: str, sources: list[Path], program: Path, flags: list[str]) -> Path:
    inputs = [*sources, DRIVERS / "bench.c"]
    dependencies = [*inputs, DRIVERS / "bench.h"]
    if not _older(program, dependencies):
        return program
    arguments = [compiler, *C_FLAGS, *map(str, inputs), "-o", str(program), *flags]
    run(arguments, program.name)
    return program


def compile_for(library: Path, include: Path, source: Path, program: Path) -> Path:
    """A driver for a libringcoll.so, against the header that came with it. Made anew each time:
    which library and which header one was made for cannot be seen from it."""
    program.unlink(missing_ok=True)
    flags = [f"-I{include}", str(library), f"-Wl,-rpath,{library.parent}"]
    return compile_c("cc", [source], program, flags)


def compile_cxx(source: Path, program: Path, include: Path, flags: list[str]) -> Path:
    """`include` is a foreign directory: its warnings are not ours."""
    bench = program.with_name("bench.o")
    if not _older(program, [source, DRIVERS / "bench.c", DRIVERS / "bench.h"]):
        return program
    run(["cc", *C_FLAGS, "-c", str(DRIVERS / "bench.c"), "-o", str(bench)], bench.name)
    cxx_flags = ["-std=c++17", "-O2", f"-I{DRIVERS}", "-isystem", str(include)]
    run(["c++", *cxx_flags, str(source), str(bench), "-o", str(program), *flags], program.name)
    return program


def build_library(directory: Path) -> Path:
    """libringcoll.so of this checkout, optimised, as the wheel has it."""
    cmake = shutil.which("cmake")
    if not cmake:
        raise BuildError("libringcoll.so: cmake is missing (apt-get install cmake)")
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DRINGCOLL_TESTS=OFF"]
    run([cmake, "-S", str(CHECKOUT), "-B", str(directory), *generator, *options], "cmake")
    jobs = str(os.cpu_count() or 1)
    run([cmake, "--build", str(directory), "--target", "ringcoll", "-j", jobs], "libringcoll.so")
    return directory / "libringcoll.so"


def _older(program: Path, sources: list[Path]) -> bool:
    if not program.exists():
        return True
    made = program.stat().st_mtime
    return any(source.stat().st_mtime > made for source in sources)
