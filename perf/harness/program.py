"""What the commands have in common: a measurement, and what is written of it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import machine, report
from .rounds import progress


def add_libraries(parser: argparse.ArgumentParser) -> None:
    """Which builds of ringcoll are measured."""
    add = parser.add_argument
    add("--library", type=Path, help="a libringcoll.so instead of a build of this")
    add("--before", type=Path, help="another libringcoll.so, measured beside")
    add("--before-header", type=Path, help="the ringcoll/ringcoll.h that came with it")


def check_libraries(arguments: argparse.Namespace) -> None:
    """Raises ValueError. Of another build only its own header knows the structs."""
    for option, path in (("--library", arguments.library), ("--before", arguments.before)):
        if path and not path.is_file():
            raise ValueError(f"{option}: {path} is no file")
    if bool(arguments.before) != bool(arguments.before_header):
        raise ValueError("--before and --before-header go together: a library and its header")
    header = arguments.before_header
    if header and not (header.is_file() and header.parts[-2:] == ("ringcoll", "ringcoll.h")):
        raise ValueError(f"--before-header: {header} is no file ringcoll/ringcoll.h")


def include_of(header: Path | None) -> Path | None:
    """The folder that <ringcoll/ringcoll.h> is found in."""
    return header and header.resolve().parent.parent


def measure_and_write(
    results: Any,
    measure: Callable[[], None],
    output: Path,
    name: str,
    *,
    quick: bool = False,
    with_plot: bool = True,
    form: Any = report,
) -> int:
    """Has `measure` fill `results`, prints the table, and writes <name>-<machine> into `output`.

    `form` is the module of the report: its Results, to_json, to_markdown and plot. Returns the exit
    status: 1 if there is nothing to write.
    """
    quiet = machine.Quiet()
    if quiet.warning:
        progress(f"WARNING: {quiet.warning}")
    for peer, reason in results.missing.items():
        progress(f"  without {peer}: {reason}")
    measure()
    if not results.rounds:
        progress("nothing could be measured")
        return 1
    results.conditions |= quiet.report()
    stem = output / f"{name}-{machine.slug(results.machine)}{'-quick' if quick else ''}"
    for path in report.write(results, stem, with_plot=with_plot, form=form):
        progress(f"wrote {os.path.relpath(path)}")
    print(form.to_markdown(results))
    return 0
