"""One key of MXNet's store: a table, dense or of rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy
from mxnet.ndarray import NDArray

from ringcoll.mxnet import arrays, optimizers
from ringcoll.mxnet.arrays import Array
from ringcoll.mxnet.errors import InvalidArgument

# MXNet's own store cuts dense arrays of so many elements, and each of its servers updates its part.
_CUT = 1_000_000
_SYNCHRONOUS = 0  # staleness: the pushes of all workers are one, and a pull waits for it


class Key:
    """The table of a key, and what may be done with it. All workers make it with the same value's
    type and shape."""

    def __init__(
        self, store: Any, name: str, index: int, like: NDArray, synchronous: bool, optimizer: Any
    ) -> None:
        self._name, self._index, self._synchronous = name, index, synchronous
        self.sparse = arrays.is_sparse(like)
        self.shape = tuple(like.shape)
        self.dtype = numpy.dtype(like.dtype)
        self._has_rule = False
        shape = {"row_shape": self.shape[1:]} if self.sparse else {"shape": self.shape}
        # Made alike by all workers, even if only some of them have an optimizer.
        self._table = store.table(
            name,
            **shape,
            dtype=self.dtype.name,
            rule=optimizers.merging(),
            shards=None if self.sparse or math.prod(self.shape) >= _CUT else 1,
            staleness=_SYNCHRONOUS if synchronous else None,
        )
        if optimizer is not None:
            self.set_optimizer(optimizer)

    def set_optimizer(self, optimizer: Any) -> None:
        """From now on pushes are gradients, also those of workers that have not called this."""
        rule = optimizers.rule_of(optimizer, self._index, self.dtype.name, self.sparse)
        self._table.set_rule(rule)
        self._has_rule = True

    def assign(self, value: NDArray) -> None:
        """Sets the value, whatever the rule is."""
        ids, values = self._rows(value)
        self._table.assign(ids, values)

    def start_push(self, values: Sequence[NDArray]) -> Any:
        """Adds up the values and pushes the sum, which ends this worker's round. The arrays must
        not be written until ``wait()`` of the call that this returns has returned."""
        ids, data = self._checked_push(values)
        call = self._table.push_async(ids, data)
        if self._synchronous:
            self._table.tick()
        return call

    def _checked_push(self, values: Sequence[NDArray]) -> tuple[Array | None, Array]:
        if not self._synchronous and not self._has_rule:
            raise InvalidArgument(
                f"push of {self._name}: an asynchronous store has no rounds, and needs an "
                "optimizer: call set_optimizer() first"
            )
        return self._rows(arrays.merged(values))

    def _rows(self, value: NDArray) -> tuple[Array | None, Array]:
        """The ids and values of a push; ids are None for a dense key."""
        if arrays.is_sparse(value) != self.sparse:
            value = value.tostype("row_sparse" if self.sparse else "default")
        if self.sparse:
            self._check(value.shape, value.dtype)
            return arrays.rows_of(value)
        data = arrays.read_view(value)
        self._check(data.shape, data.dtype)  # asking the array of MXNet takes longer
        return None, data

    def _check(self, shape: tuple[int, ...], dtype: Any) -> None:
        if shape != self.shape or dtype != self.dtype:
            raise InvalidArgument(
                f"{self._name} is {self.dtype.name} {list(self.shape)}, and the array is "
                f"{numpy.dtype(dtype).name} {list(shape)}"
            )

    def pull(self, outs: Sequence[NDArray]) -> None:
        """Gives the arrays the value. They are ready when this returns."""
        if self.sparse or arrays.is_sparse(outs[0]):
            self._pull_all_rows(outs)
            return
        memory = arrays.write_view(outs[0])
        if memory is None or memory.dtype != self.dtype:
            copied, value = outs, self._table.pull(None)
        else:
            self._check(memory.shape, memory.dtype)
            copied, value = outs[1:], self._table.pull(None, memory)
        for out in copied:
            self._check(out.shape, self.dtype)
            arrays.set_values(out, value)

    def _pull_all_rows(self, outs: Sequence[NDArray]) -> None:
        for out in outs:
            self._check(out.shape, self.dtype)  # another type is converted
        ids = numpy.arange(self.shape[0], dtype=numpy.int64)
        value = self._table.pull(ids if self.sparse else None)
        for out in outs:
            if arrays.is_sparse(out):
                arrays.set_rows(out, ids, value)
            else:
                arrays.set_values(out, value)

    def pull_rows(self, out: NDArray, wanted: NDArray) -> None:
        """Gives a row_sparse array the rows with these ids, and no others."""
        if not self.sparse or not arrays.is_sparse(out):
            raise InvalidArgument(
                f"row_sparse_pull of {self._name}: the key and the array are row_sparse: use pull()"
            )
        ids = numpy.unique(wanted.asnumpy().astype(numpy.int64))
        if len(ids) and not 0 <= ids[0] <= ids[-1] < self.shape[0]:
            raise InvalidArgument(
                f"row_sparse_pull of {self._name}: rows are 0 to {self.shape[0] - 1}, not "
                f"{ids[0]} to {ids[-1]}"
            )
        arrays.set_rows(out, ids, self._table.pull(ids))
