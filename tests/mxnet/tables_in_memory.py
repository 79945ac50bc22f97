"""Tables as :mod:`ringcoll.mxnet` uses them, in the memory of one process whose threads are the
workers. It says in few lines what a store and its tables have to do."""

from __future__ import annotations

import pickle
import threading
from dataclasses import dataclass
from typing import Any

import numpy

from ringcoll import _core, rules
from ringcoll.mxnet import launch

DENSE = -1  # the only row of a dense table
LIMIT_S = 20.0


@dataclass(frozen=True)
class Merging:
    """The value becomes the sum of the pushes of a clock."""


@dataclass(frozen=True)
class Python:
    """``update`` is a pickled function that changes the value in place."""

    update: bytes

    @classmethod
    def of(cls, update: Any) -> Python:
        return cls(pickle.dumps(update))


def arrays_of_state(rule: rules.Rule) -> int:
    """How many arrays a rule keeps beside the values."""
    if isinstance(rule, rules.SGD):
        return int(rule.momentum > 0)
    return {rules.Adagrad: 1, rules.Adam: 2}[type(rule)]


class Rows:
    """What the servers have of a table."""

    def __init__(self, shape: tuple[int, ...], dtype: str, rule: Any, workers: int | None) -> None:
        self.shape, self.dtype, self.rule = shape, dtype, rule
        self.values: dict[int, numpy.ndarray] = {}
        self.state: dict[int, Any] = {}
        self.clocks = [0] * (workers or 0)
        self.pending: dict[tuple[int, int], list[tuple[list[int], numpy.ndarray]]] = {}
        self.changed = threading.Condition()
        self.applied = 0

    @property
    def current(self) -> int:
        """The first clock that is not complete."""
        return min(self.clocks)

    def set_rule(self, rule: Any) -> None:
        if rule == self.rule:
            return
        if type(rule) is not type(self.rule) or isinstance(rule, Python):
            self.state.clear()
        self.rule = rule
        self.update = pickle.loads(rule.update) if isinstance(rule, Python) else None

    def value(self, row: int) -> numpy.ndarray:
        return self.values.setdefault(row, numpy.zeros(self.shape, self.dtype))

    def apply(self, pushes: list[tuple[list[int], numpy.ndarray]]) -> None:
        """Applies the sum of several pushes."""
        sums: dict[int, numpy.ndarray] = {}
        for ids, values in pushes:
            for row, value in zip(ids, values, strict=True):
                sums[row] = sums[row] + value if row in sums else value.copy()
        for row, total in sums.items():
            self.applied += 1
            self._apply(row, total)

    def _apply(self, row: int, push: numpy.ndarray) -> None:
        value, rule = self.value(row), self.rule
        if isinstance(rule, Merging):
            value[...] = push
        elif isinstance(rule, Python):
            self.update(row, value, push)
        else:
            empty = [numpy.zeros(self.shape, self.dtype) for _ in range(arrays_of_state(rule))]
            state, pushes = self.state.get(row, (empty, 0))
            pushes, _ = _core.rule_apply(rule.spec(), value, state, push, pushes=pushes)
            self.state[row] = (state, pushes)

    def finish(self, worker: int) -> int:
        before = self.current
        self.clocks[worker] += 1
        for clock in range(before, self.current):
            everyone = range(len(self.clocks))
            self.apply([each for w in everyone for each in self.pending.pop((clock, w), [])])
        return self.clocks[worker]


class Call:
    def wait(self, timeout: float | None = None) -> None:
        """It has ended when it began."""


class Table:
    """A table as one worker sees it."""

    def __init__(self, rows: Rows, sparse: bool, worker: int) -> None:
        self.rows, self._sparse, self._worker = rows, sparse, worker

    def _ids(self, ids: Any) -> list[int]:
        assert (ids is not None) == self._sparse
        return [DENSE] if ids is None else [int(each) for each in ids]

    def _values(self, ids: Any, values: numpy.ndarray) -> numpy.ndarray:
        assert values.dtype == self.rows.dtype
        assert values.shape == (self.rows.shape if ids is None else (len(ids), *self.rows.shape))
        return numpy.array(values if self._sparse else values[None])

    def push_async(self, ids: Any, values: numpy.ndarray, weight: float = 1.0) -> Call:
        push = (self._ids(ids), self._values(ids, values))
        with self.rows.changed:
            if self.rows.clocks:
                clock = self.rows.clocks[self._worker]
                self.rows.pending.setdefault((clock, self._worker), []).append(push)
            else:
                self.rows.apply([push])
        return Call()

    def tick(self) -> int:
        with self.rows.changed:
            clock = self.rows.finish(self._worker)
            self.rows.changed.notify_all()
            return clock

    def pull(self, ids: Any = None, out: Any = None) -> Any:
        rows = self.rows
        with rows.changed:
            if rows.clocks:
                wanted = rows.clocks[self._worker]
                assert rows.changed.wait_for(lambda: rows.current >= wanted, LIMIT_S), (
                    "a worker waits"
                )
            found = [rows.value(row) for row in self._ids(ids)]
            if not self._sparse:
                found = found[0]
            empty = numpy.zeros((0, *rows.shape), rows.dtype)
            value = numpy.array(found) if len(found) or not self._sparse else empty
        if out is None:
            return value
        out[...] = value
        return out

    def assign(self, ids: Any, values: numpy.ndarray) -> None:
        with self.rows.changed:
            for row, value in zip(self._ids(ids), self._values(ids, values), strict=True):
                self.rows.value(row)[...] = value
                self.rows.state.pop(row, None)

    def set_rule(self, rule: Any) -> None:
        with self.rows.changed:
            self.rows.set_rule(rule)


class Store:
    """A store as one worker sees it. ``shared`` are the tables by name, for all workers."""

    def close(self) -> None:
        """Nothing is open."""

    def __init__(self, shared: dict[str, Rows], lock: Any, worker: int, workers: int) -> None:
        self._shared, self._lock, self._worker, self._workers = shared, lock, worker, workers

    def table(
        self,
        name: str,
        shape: Any = None,
        *,
        row_shape: Any = None,
        dtype: str = "float32",
        rule: Any = None,
        staleness: int | None = None,
        shards: int | None = None,
    ) -> Table:
        assert (shape is None) != (row_shape is None) and staleness in (0, None)
        sparse = shape is None
        workers = None if staleness is None else self._workers
        with self._lock:
            if name not in self._shared:
                self._shared[name] = Rows(
                    tuple(row_shape if sparse else shape), dtype, rule, workers
                )
            return Table(self._shared[name], sparse, self._worker)


def jobs(size: int) -> list[launch.Job]:
    """The jobs of so many workers, which are threads, with a store that they share."""
    barrier = threading.Barrier(size, timeout=LIMIT_S)
    shared: dict[str, Rows] = {}
    lock = threading.Lock()
    return [
        launch.Job(rank, size, Store(shared, lock, rank, size), barrier.wait)
        for rank in range(size)
    ]
