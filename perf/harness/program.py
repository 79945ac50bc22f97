"""What the commands have in common: a measurement, and what is written of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from . import machine, report
from .rounds import progress


def measure_and_write(
    results: report.Results,
    measure: Callable[[], None],
    output: Path,
    name: str,
    *,
    quick: bool = False,
    with_plot: bool = True,
) -> int:
    """Has `measure` fill `results`, prints the table, and writes <name>-<machine> into `output`.

    Returns the exit status: 1 if there is nothing to write.
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
    for path in report.write(results, stem, with_plot=with_plot):
        progress(f"wrote {os.path.relpath(path)}")
    print(report.to_markdown(results))
    return 0
