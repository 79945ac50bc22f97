"""Draws the matrices of rates and round trips. Hosts are in the order of their places, so that
groups appear as blocks. Needs matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ringcoll.probe import Survey
from ringcoll.probe.structure import Matrix, rates_of, trips_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_LABELS = 64
_LEAST_RANGE = 4.0  # ratio of the scale's ends, so that similar values get similar colours


def draw(found: Survey) -> Figure:
    """Draws both matrices. Rates are in bits per second, from the host of the row to the host of
    the column."""
    from matplotlib.figure import Figure

    count = len(found.hosts)
    places = found.structure.places()
    side = min(16.0, 3.5 + 0.22 * count)
    figure = Figure(figsize=(2 * side + 1, side), layout="constrained")
    rates, trips = rates_of(count, found.views) * 8 / 1e6, trips_of(count, found.views)
    unit, scale = ("Gb/s", 1e3) if np.nanmax(rates, initial=0) >= 1e3 else ("Mb/s", 1.0)
    left, right = figure.subplots(1, 2)
    _heat(left, found, list(places), rates / scale, f"Rate from row to column, {unit}", "viridis")
    _heat(right, found, list(places), trips, "Round trip, µs", "viridis_r")
    groups = ", ".join(sorted(set(places.values())))
    figure.suptitle(f"ringcoll probe: {count} hosts; {groups}", wrap=True)
    return figure


def _heat(
    axes: Axes, found: Survey, order: list[int], values: Matrix, title: str, colors: str
) -> None:
    """Draws one matrix, with a colour for each pair on a logarithmic scale. Grey: not measured."""
    from matplotlib import colormaps
    from matplotlib.colors import LogNorm

    shown = values[np.ix_(order, order)]
    known = shown[shown > 0]
    low, high = (known.min(), known.max()) if len(known) else (1.0, 1.0)
    norm = LogNorm(low, max(high, _LEAST_RANGE * low))
    image = axes.imshow(shown, cmap=colormaps[colors].with_extremes(bad="lightgrey"), norm=norm)
    axes.figure.colorbar(image, ax=axes, label=title.rpartition(", ")[2], shrink=0.85)
    axes.set_title(title)
    ticks = range(0, len(order), 1 + (len(order) - 1) // _MOST_LABELS)
    names = [found.hosts[order[tick]].name for tick in ticks]
    axes.set_xticks(ticks, names, rotation=90)
    axes.set_yticks(ticks, names)
    leaves = list(found.structure.places().values())
    for edge in [i for i in range(1, len(leaves)) if leaves[i] != leaves[i - 1]]:
        axes.axhline(edge - 0.5, color="white", linewidth=1.5)
        axes.axvline(edge - 0.5, color="white", linewidth=1.5)
