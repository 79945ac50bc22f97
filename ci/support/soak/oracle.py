"""What collectives have to give, by NumPy.

The semantics are the documented ones: integers wrap round; a factor on integers truncates towards
zero, and one that is 1/k divides; 16-bit floats are combined in float32; on truth values sum and
max are "or", product and min "and".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from support.soak import data
from support.soak.data import Array
from support.soak.script import Call

_HALVES = ("float16", "bfloat16")
_OPS: dict[str, Callable[[Array, Array], Array]] = {
    "sum": np.add,
    "average": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "product": np.multiply,
    "bit_and": np.bitwise_and,
    "bit_or": np.bitwise_or,
}
_TRUTH_OPS: dict[str, Callable[[Array, Array], Array]] = {
    "sum": np.logical_or,
    "average": np.logical_or,
    "min": np.logical_and,
    "max": np.logical_or,
    "product": np.logical_and,
    "bit_and": np.logical_and,
    "bit_or": np.logical_or,
}


def scaled(x: Array, dtype: str, factor: float) -> Array:
    """`x` times the factor, as the library says that it multiplies."""
    if factor == 1:
        return x
    if dtype == "bool":
        return np.logical_and(x, factor >= 1)
    if dtype in _HALVES:
        half: Array = (x.astype(np.float32) * np.float32(factor)).astype(x.dtype)
        return half
    if dtype in data.FLOATS:
        product: Array = np.multiply(x, factor, dtype=x.dtype)
        return product
    divisor = round(1 / factor)
    if divisor and 1 / divisor == factor:
        quotient = np.abs(x.astype(np.int64)) // divisor * np.sign(x.astype(np.int64))
    else:
        quotient = np.trunc(x.astype(np.float64) * factor)
    limits = np.iinfo(x.dtype)
    clipped: Array = np.clip(quotient, limits.min, limits.max).astype(x.dtype)
    return clipped


def reduced(call: Call, parts: Sequence[Array]) -> Array:
    """The parts of all ranks, combined and scaled."""
    truths = call.dtype == "bool"
    op = (_TRUTH_OPS if truths else _OPS)[call.op]
    total = scaled(parts[0], call.dtype, call.prescale)
    with np.errstate(over="ignore"):
        for part in parts[1:]:
            total = op(total, scaled(part, call.dtype, call.prescale))
    factor = call.postscale / len(parts) if call.op == "average" else call.postscale
    return scaled(total, call.dtype, factor)


def neutral(call: Call, count: int) -> Array:
    """What changes nothing when it is combined."""
    values: dict[str, Any] = {"sum": 0, "bit_or": 0, "product": 1, "bit_and": -1}
    if call.dtype == "bool":
        values |= {"min": 1, "max": 0, "bit_and": 1}
    elif call.dtype in data.FLOATS or call.dtype in _HALVES:
        values |= {"min": np.inf, "max": -np.inf}
    else:
        limits = np.iinfo(data.DTYPES[call.dtype])
        values |= {"min": limits.max, "max": limits.min}
    return np.full(count, values[call.op]).astype(data.DTYPES[call.dtype])


def edges(counts: Sequence[int]) -> list[int]:
    return [0, *np.cumsum(counts, dtype=np.int64).tolist()]


class Oracle:
    """The tensors of a call on every rank of its communicator; `run`: which time it is made."""

    def __init__(self, call: Call, size: int, run: int) -> None:
        self._call = call
        self._size = size
        self._run = run

    def inputs(self, rank: int) -> list[Array]:
        """What a rank contributes: the tensors of a fused call, or one."""
        call = self._call
        if call.collective in ("allreduce", "reduce", "scan", "exscan"):
            return [self._combined(rank, i, n) for i, n in enumerate(call.tensors)]
        if call.collective == "broadcast":
            return [self._moved(rank, i, n) for i, n in enumerate(call.tensors)]
        if call.collective == "reduce_scatter":
            return [self._combined(rank, 0, sum(call.counts))]
        if call.collective == "scatter":
            return [self._moved(rank, 0, sum(call.counts))]
        if call.collective == "alltoall":
            return [self._moved(rank, 0, sum(call.matrix[rank]))]
        if call.collective == "barrier":
            return []
        return [self._moved(rank, 0, call.counts[rank])]

    def outputs(self, rank: int) -> list[Array]:
        """What a rank has to get; nothing where it is not the root of a reduce or gather."""
        call = self._call
        if call.collective in ("reduce", "gather") and rank != call.root:
            return []
        if call.collective in ("allreduce", "reduce", "scan", "exscan"):
            return self._all_combined(rank)
        if call.collective == "broadcast":
            return self.inputs(call.root)
        if call.collective in ("allgather", "gather"):
            return [np.concatenate([self.inputs(r)[0] for r in range(self._size)])]
        if call.collective == "alltoall":
            return [np.concatenate([self._sent(r, rank) for r in range(self._size)])]
        if call.collective == "barrier":
            return []
        first, last = edges(call.counts)[rank : rank + 2]
        if call.collective == "scatter":
            return [self.inputs(call.root)[0][first:last]]
        return [reduced(call, [self.inputs(r)[0][first:last] for r in range(self._size)])]

    def _all_combined(self, rank: int) -> list[Array]:
        """The vectors of all ranks that count for this one."""
        call = self._call
        end = {"scan": rank + 1, "exscan": rank}.get(call.collective, self._size)
        if end == 0:
            return [neutral(call, n) for n in call.tensors]
        everyone = [self.inputs(r) for r in range(end)]
        return [reduced(call, parts) for parts in zip(*everyone, strict=True)]

    def _sent(self, source: int, target: int) -> Array:
        first, last = edges(self._call.matrix[source])[target : target + 2]
        return self.inputs(source)[0][first:last]

    def _key(self, rank: int, tensor: int) -> data.Key:
        return (self._call.number, self._run, rank, tensor)

    def _moved(self, rank: int, tensor: int, count: int) -> Array:
        return data.moved(self._key(rank, tensor), self._call.dtype, count)

    def _combined(self, rank: int, tensor: int, count: int) -> Array:
        call = self._call
        factors = call.prescale != 1 or call.postscale != 1
        key = self._key(rank, tensor)
        return data.combined(key, call.dtype, count, call.op, scaled=factors)


def same(found: Array, wanted: Array) -> bool:
    """To the last bit."""
    return found.tobytes() == wanted.tobytes()
