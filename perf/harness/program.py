"""What the commands have in common: a measurement, and what is written of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import machine, report
from .rounds import progress


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
