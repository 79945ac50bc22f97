"""Gradients of rows, from all passes of one step of training: they are pushed as one.

One push a step is what clocks count: all of a step is in the same clock, whatever number of times a
layer was used. It also leaves the program the time between backward and step, to clip or to skip.
"""

from __future__ import annotations

from typing import Any

import numpy

from ringcoll.tables.table import Table, TableCall


class Gradients:
    """What one layer will push to its table. Any thread may add, and one pushes."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._added: list[tuple[Any, Any]] = []
        self._call: TableCall | None = None  # the last push, if nobody waits for it

    def add(self, ids: Any, values: Any) -> None:
        """Of rows, whose ids may be the same as earlier ones: the table adds them up."""
        if len(ids):
            self._added.append((numpy.asarray(ids), numpy.asarray(values)))

    def push(self, scale: float, timeout: float | None = None) -> None:
        """Pushes what was added, times ``scale``. If the table has clocks, this finishes the
        worker's clock, even without a gradient: the others wait for it. If it has none, this only
        starts the push, and raises the error of the one before."""
        call, self._call = self._call, None
        if call is not None:
            call.wait(timeout)
        added, self._added = self._added, []
        if added:
            ids, values = (numpy.concatenate(part) for part in zip(*added, strict=True))
            if scale != 1.0:
                values = values * values.dtype.type(scale)
            self._call = self._table.push_async(ids, values)
        if self._table.clock is not None:
            if self._call is not None:
                call, self._call = self._call, None
                call.wait(timeout)
            self._table.tick(timeout)
