"""What ranks contribute: bytes that follow from a key, and tensors whose results are exact.

Sums and products of small whole numbers are exact in every type and order, so that results are
compared bit by bit. What is only moved, and integers that wrap round, are random bits.
"""

from __future__ import annotations

import hashlib
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Key = tuple[int, ...]

DTYPES: dict[str, np.dtype[Any]] = {
    "uint8": np.dtype("u1"),
    "int8": np.dtype("i1"),
    "uint16": np.dtype("u2"),
    "int16": np.dtype("i2"),
    "uint32": np.dtype("u4"),
    "int32": np.dtype("i4"),
    "uint64": np.dtype("u8"),
    "int64": np.dtype("i8"),
    "float16": np.dtype("f2"),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype("f4"),
    "float64": np.dtype("f8"),
    "bool": np.dtype("?"),
}
FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
_POOL = 1 << 22
_random = np.random.default_rng(20)
_bits = _random.integers(0, 256, _POOL, np.uint8)
_small = _random.integers(-8, 9, _POOL, np.int8)
_powers = _random.choice(np.array([-2, -1, 1, 2], np.int8), _POOL)
_truths = _random.integers(0, 2, _POOL, np.uint8)


def _start(key: Key) -> int:
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % (_POOL // 2)


def _stretch(pool: Array, key: Key, count: int) -> Array:
    start = _start(key)
    if start + count <= _POOL:
        return pool[start : start + count]
    return np.resize(np.roll(pool, -start), count)


def payload(key: Key, size: int) -> Array:
    """The bytes of a message."""
    return _stretch(_bits, key, size)


def moved(key: Key, dtype: str, count: int) -> Array:
    """A tensor that a collective moves and does not combine."""
    if dtype == "bool":
        return _stretch(_truths, key, count).view(np.bool_)
    return _stretch(_bits, key, count * DTYPES[dtype].itemsize).view(DTYPES[dtype])


def combined(key: Key, dtype: str, count: int, op: str, *, scaled: bool) -> Array:
    """A tensor that a collective combines by `op`."""
    if dtype == "bool" or (dtype not in FLOATS and not scaled and op != "average"):
        return moved(key, dtype, count)
    pool = _powers if op == "product" else _small
    values = _stretch(pool, key, count)
    if dtype.startswith("uint"):
        values = np.abs(values)
    result: Array = values.astype(DTYPES[dtype])
    return result
