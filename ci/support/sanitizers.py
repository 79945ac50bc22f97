"""The environment of tests under GCC's sanitizers, and the reports of these.

Python itself is not instrumented, so the sanitizer's library is preloaded into every process that a
test starts. A process may end unnoticed, or its output may be dropped. So each process writes its
report into a file of one folder, and any such file is a failure.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from support.stages import LOGS, ROOT, StageFailed

PACKAGE = ROOT / "build" / "asan-python"
REPORTS = LOGS / "asan-python"
# For programs that are instrumented as a whole.
ENV = {
    "ASAN_OPTIONS": "detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
}
# CPython keeps memory until a process ends. A suppression cannot tell that memory from a leak of
# the extension, since interpreter frames are in every stack. The part asan finds leaks of the
# library, and tests/processes/test_leaks.py finds leaked references.
_ASAN = "detect_leaks=0:detect_stack_use_after_return=1"
# GCC's two runtimes share one report path, and the runtime for undefined behaviour does not write
# there. So it aborts, and the other runtime reports the abort with its stack.
_ABORTS = "handle_abort=1"
_MOST_LINES = 60


def _library(name: str) -> str:
    """Returns the path of a library of the compiler. g++ prints a bare name if it has none."""
    asked = ["g++", f"-print-file-name={name}"]
    path = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    if not Path(path).is_absolute():
        raise StageFailed(f"g++ has no {name}: install the sanitizers of the compiler")
    return str(Path(path).resolve())


def environment(package: Path = PACKAGE, reports: Path = REPORTS) -> dict[str, str]:
    """Returns the variables for Python with a package of setup.sanitized(). Empties the folder for
    reports."""
    shutil.rmtree(reports, ignore_errors=True)
    reports.mkdir(parents=True)
    # libstdc++ too, or the sanitizer finds no __cxa_throw to intercept when it starts.
    preload = f"{_library('libasan.so')} {_library('libstdc++.so')}"
    path = f"log_path={reports / 'report'}"
    return {
        "LD_PRELOAD": preload,
        "PYTHONPATH": str(package),
        "PYTHONMALLOC": "malloc",  # each object is a block that the sanitizer knows
        "ASAN_OPTIONS": f"{_ASAN}:{_ABORTS}:{path}",
        "UBSAN_OPTIONS": f"{ENV['UBSAN_OPTIONS']}:abort_on_error=1:{path}",
    }


def found(reports: Path = REPORTS) -> dict[str, str]:
    """Returns the report of each process with an error, by file name."""
    complaints = {}
    for path in sorted(reports.iterdir()):
        lines = path.read_text(errors="replace").splitlines()
        complaints[path.name] = "\n".join(lines[:_MOST_LINES])
    return complaints
