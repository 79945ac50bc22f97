"""A model of parameter tables: what docs/parameters.md promises, as plain data.

Rows are NumPy arrays by id. Rules are computed in float32, operation by operation as
ringcoll/rules.py says them, so the bits of a table must be those of its model.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy

from ringcoll import rules

Array = numpy.ndarray


@dataclass
class Row:
    value: Array
    state: Array  # the one array of state that the rules here keep
    pushes: int = 0  # since the rule began


@dataclass
class Push:
    """A push that waits for its clock to be complete."""

    worker: int
    clock: int
    rows: dict[int, Array]


def slots_of(rule: rules.Rule) -> int:
    """How many arrays of state a rule keeps."""
    has_momentum = isinstance(rule, rules.SGD) and rule.momentum > 0
    return int(has_momentum or isinstance(rule, rules.Adagrad))


@dataclass
class ModelTable:
    """What a table should be. A dense one has its rows from the beginning, a sparse one gets them.
    Workers are any numbers that ascend as those of their clients do."""

    row_shape: tuple[int, ...]
    rule: rules.Rule
    staleness: int | None = None
    initial: float = 0.0
    dense_rows: int = 0  # 0: it is sparse
    clocks: dict[int, int] = field(default_factory=dict)  # worker -> the clock that it is at
    current: int = 0  # the first clock that is not complete
    rows: dict[int, Row] = field(default_factory=dict)
    waiting: list[Push] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rows |= {row: self._new_row() for row in range(self.dense_rows)}

    # Rows.

    def _new_row(self) -> Row:
        value = numpy.full(self.row_shape, self.initial, "float32")
        return Row(value, numpy.zeros(self.row_shape, "float32"))

    def push(self, worker: int, ids: Sequence[int] | None, values: Array) -> None:
        rows = self._merged(zip(self._ids(ids), values.copy(), strict=True))
        one = Push(worker, self.clocks.get(worker, -1), rows)
        if self.staleness == 0:
            self.waiting.append(one)
        else:
            self._apply([one])

    def pull(self, ids: Sequence[int] | None) -> Array:
        rows = [self.rows.get(each) or self._new_row() for each in self._ids(ids)]
        return numpy.array([row.value for row in rows]).reshape(-1, *self.row_shape)

    def assign(self, ids: Sequence[int] | None, values: Array) -> None:
        for each, value in zip(self._ids(ids), values, strict=True):
            self.rows.setdefault(each, self._new_row()).value = value.copy()

    def set_rule(self, rule: rules.Rule) -> None:
        if type(rule) is not type(self.rule) or slots_of(rule) != slots_of(self.rule):
            for row in self.rows.values():
                row.state, row.pushes = numpy.zeros_like(row.state), 0
        self.rule = rule

    def _ids(self, ids: Sequence[int] | None) -> list[int]:
        return list(range(self.dense_rows)) if ids is None else list(ids)

    def _merged(self, rows: Iterable[tuple[int, Array]]) -> dict[int, Array]:
        """Makes one value of those with the same id, as the rule does that there is now."""
        adds = getattr(self.rule, "combine", "sum") == "sum"
        merged: dict[int, Array] = {}
        for each, value in rows:
            merged[each] = merged[each] + value if adds and each in merged else value
        return merged

    def _apply(self, pushes: Sequence[Push]) -> None:
        """Applies pushes as one."""
        for each, value in self._merged(r for p in pushes for r in p.rows.items()).items():
            row = self.rows.setdefault(each, self._new_row())
            row.pushes += 1
            self._step(row, value)

    def _step(self, row: Row, push: Array) -> None:
        rule = self.rule
        if isinstance(rule, rules.Sum):
            row.value = row.value + push
        elif isinstance(rule, rules.Assign):
            row.value = push
        elif isinstance(rule, rules.SGD):
            if rule.momentum and row.pushes > 1:
                push = row.state * numpy.float32(rule.momentum) + push
            row.state = push
            row.value = row.value + numpy.float32(-rule.lr) * push
        else:
            assert isinstance(rule, rules.Adagrad)
            row.state = row.state + push * push
            root = numpy.sqrt(row.state) + numpy.float32(rule.eps)
            row.value = row.value + numpy.float32(-rule.lr) * push / root

    # Clocks.

    def may_push(self, worker: int) -> bool:
        return self.staleness != 0 or worker in self.clocks

    def may_pull(self, worker: int) -> bool:
        """Whether a pull is answered now. Otherwise it waits."""
        clock = self.clocks.get(worker, 0)
        return self.staleness is None or self.current >= clock - self.staleness

    def join(self, worker: int) -> int:
        return self.clocks.setdefault(worker, self.current)

    def tick(self, worker: int) -> None:
        self.clocks[worker] += 1
        self._complete()

    def leave(self, worker: int) -> None:
        """What it has pushed to a clock that it had not finished is dropped."""
        if worker not in self.clocks:
            return
        clock = self.clocks.pop(worker)
        self.waiting = [p for p in self.waiting if p.worker != worker or p.clock < clock]
        self._complete()

    def _complete(self) -> None:
        self.current = max(self.current, min(self.clocks.values(), default=0))
        over = [push for push in self.waiting if push.clock < self.current]
        self.waiting = [push for push in self.waiting if push.clock >= self.current]
        for clock in sorted({push.clock for push in over}):
            of_clock = [push for push in over if push.clock == clock]
            self._apply(sorted(of_clock, key=lambda push: push.worker))

    # Versions.

    def saved(self, **changes: Any) -> ModelTable:
        """What is made of this table once it was saved: its rows, and clocks from 0 on."""
        fresh = {"clocks": {}, "current": 0, "waiting": [], "rows": copy.deepcopy(self.rows)}
        made = copy.copy(self)
        made.__dict__.update(fresh | changes)
        return made
