"""``ringcoll compare``: times the same allreduces through Horovod with each backend: RINGCOLL, GLOO
and, if Horovod has it, MPI.

Short jobs of the backends alternate, so that other load on the machine affects all of them alike.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ringcoll.errors import Error, InvalidArgument
from ringcoll.info import wide_console

BACKENDS = ("RINGCOLL", "GLOO", "MPI")
# With -P, Python does not import a folder named ringcoll in the current directory.
WORKER = (sys.executable, "-P", "-m", "ringcoll.compare_worker")
DEFAULT_SIZES = "4,1K,64K,1M,16M,64M"
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}

Times = dict[str, dict[int, float]]


def parse_size(text: str) -> int:
    """Bytes from a number with the suffix K, M or G (powers of 1024), or none. At least one
    float32."""
    digits, unit = (text[:-1], _UNITS[text[-1:]]) if text[-1:] in _UNITS else (text, 1)
    if not digits.isdecimal() or int(digits) * unit < 4:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a size in bytes of at least 4, such as 4, 64K or 16M"
        )
    return int(digits) * unit


def _parse_sizes(text: str) -> list[int]:
    return [parse_size(part.strip()) for part in text.split(",")]


def _parse_positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "compare",
        help="time allreduce through Horovod under each of its backends",
        description="Runs Horovod jobs on this host, and prints the median time of an allreduce "
        "under each backend side by side.",
    )
    parser.add_argument(
        "--np", type=_parse_positive, default=2, metavar="N", help="ranks of each job (default 2)"
    )
    parser.add_argument(
        "--sizes",
        type=_parse_sizes,
        default=_parse_sizes(DEFAULT_SIZES),
        help=f"sizes of the tensors in bytes (default {DEFAULT_SIZES})",
    )
    parser.add_argument(
        "--rounds", type=_parse_positive, default=3, help="jobs of each backend (default 3)"
    )
    parser.add_argument(
        "--backends",
        type=lambda text: text.upper().split(","),
        help="some of RINGCOLL,GLOO,MPI (default: all that Horovod was built with)",
    )
    parser.add_argument(
        "--limit",
        type=_parse_positive,
        default=300,
        metavar="S",
        help="seconds that one job may take (default 300)",
    )
    parser.add_argument("--json", action="store_true", help="print the medians as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    framework, backends = choose_backends(arguments.backends, _probe(arguments.limit))
    times = _measure(arguments, framework, backends)
    if arguments.json:
        print(
            json.dumps({"ranks": arguments.np, "framework": framework, "seconds": times}, indent=2)
        )
    else:
        wide_console().print(make_table(times, arguments.np, framework))
    return 0


def choose_backends(wanted: Sequence[str] | None, found: dict[str, Any]) -> tuple[str, list[str]]:
    """The framework and the backends to run. ``found`` is the result of the worker's probe. Raises
    Error if Horovod lacks a working framework or a wanted backend."""
    if not found["framework"]:
        why = "; ".join(found["reasons"])
        raise Error(
            f"Horovod works here with neither torch nor TensorFlow ({why}). `ringcoll horovod "
            "install` builds it"
        )
    built = [name for name in BACKENDS if found["backends"].get(name.lower())]
    for name in wanted or []:
        if name not in BACKENDS:
            raise InvalidArgument(f"{name} is no backend; the backends are {', '.join(BACKENDS)}")
        if name not in built:
            has = ", ".join(built) or "none"
            raise Error(
                f"the installed Horovod was built without {name}; its backends: {has}. "
                "`ringcoll horovod install` builds another"
            )
    return found["framework"], list(wanted) if wanted else built


def make_table(times: Times, ranks: int, framework: str) -> Table:
    """A table of the medians, and of the other backends' times as multiples of RINGCOLL's."""
    table = Table(
        title=f"Horovod {framework}, allreduce of float32, {ranks} ranks: medians",
        title_justify="left",
    )
    table.add_column("bytes", justify="right")
    others = [backend for backend in times if backend != "RINGCOLL"]
    for backend in times:
        table.add_column(backend, justify="right")
    ratios = [backend for backend in others if "RINGCOLL" in times]
    for backend in ratios:
        table.add_column(f"{backend} / RINGCOLL", justify="right")
    for size in next(iter(times.values())):
        cells = [_bytes(size)] + [_seconds(times[backend][size]) for backend in times]
        cells += [f"{times[backend][size] / times['RINGCOLL'][size]:.2f}" for backend in ratios]
        table.add_row(*cells)
    return table


def _measure(arguments: argparse.Namespace, framework: str, backends: list[str]) -> Times:
    samples: dict[str, dict[int, list[float]]] = {
        name: {size: [] for size in arguments.sizes} for name in backends
    }
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    console = wide_console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=arguments.rounds * len(backends))
        for number in range(arguments.rounds):
            for backend in backends:
                progress.update(task, description=f"round {number + 1}: {backend}")
                for size, seconds in _run_job(backend, framework, arguments).items():
                    samples[backend][int(size)].append(seconds)
                progress.advance(task)
    return {
        name: {size: statistics.median(all_) for size, all_ in row.items()}
        for name, row in samples.items()
    }


def _run_job(backend: str, framework: str, arguments: argparse.Namespace) -> dict[str, float]:
    launcher = Path(sys.executable).parent / "horovodrun"
    found = str(launcher) if launcher.exists() else shutil.which("horovodrun")
    if not found:
        raise Error(
            "horovodrun is not there. `ringcoll horovod install` builds and installs Horovod"
        )
    by = "--mpi" if backend == "MPI" else "--gloo"
    sizes = ",".join(str(size) for size in arguments.sizes)
    worker = [*WORKER, "--framework", framework, "--sizes", sizes]
    environment = {
        "HOROVOD_CPU_OPERATIONS": backend,
        # Open MPI needs two variables to run as root, and one for more ranks than cores.
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
    }
    command = [found, "-np", str(arguments.np), by, *worker]
    return cast("dict[str, float]", _run_worker(command, environment, arguments.limit))


def _probe(limit: int) -> dict[str, Any]:
    return cast("dict[str, Any]", _run_worker([*WORKER, "--probe"], {}, limit))


def _run_worker(command: list[str], environment: dict[str, str], limit: int) -> Any:
    """Runs the worker and returns the JSON that it writes. Raises Error with the end of its output
    if it fails or takes longer than ``limit`` seconds."""
    with tempfile.TemporaryDirectory(prefix="ringcoll-compare-") as folder:
        output, log = Path(folder) / "result.json", Path(folder) / "log"
        with open(log, "wb") as stream:
            process = subprocess.Popen(
                [*command, "--output", str(output)],
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status: int | None = process.wait(limit)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                _end(process)
        if status == 0 and output.exists():
            return json.loads(output.read_text())
        ended = (
            f"ended with status {status}"
            if status is not None
            else f"had not ended after {limit} s"
        )
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
        raise Error(f"{' '.join(command)} {ended}:\n{tail}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends all remaining processes of a job's process group, launcher and ranks."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _bytes(size: int) -> str:
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor and size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} B"


def _seconds(value: float) -> str:
    if value < 1e-3:
        return f"{value * 1e6:.1f} µs"
    return f"{value * 1e3:.2f} ms"
