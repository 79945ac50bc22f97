"""Memory that is handed to the library: with guards around it, and spoiled when it comes back.

Whoever still reads memory whose call has ended gets what was written there since, and the result
is wrong.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from support.soak.data import Array

_GUARD = 64
_GUARDED = 0xA5
_SPOILED = 0x5A


class Wrong(Exception):
    """A result, or memory beside it, is not what it has to be."""


class Buffer:
    """`tensor`: elements of a type, `offset` bytes from an aligned place."""

    def __init__(self, count: int, dtype: np.dtype[Any], offset: int = 0) -> None:
        size = count * dtype.itemsize
        self._memory = np.full(size + 2 * _GUARD + offset, _GUARDED, np.uint8)
        self._first = _GUARD + offset
        self._last = self._first + size
        self.bytes = self._memory[self._first : self._last]
        self.tensor: Array = self.bytes.view(dtype)

    @classmethod
    def of(cls, values: Array, offset: int = 0) -> Buffer:
        made = cls(len(values), values.dtype, offset)
        made.tensor[:] = values
        return made

    def check(self, what: str) -> None:
        """Raises Wrong if somebody has written beside the tensor."""
        for side, guard in (
            ("before", self._memory[: self._first]),
            ("after", self._memory[self._last :]),
        ):
            if (guard != _GUARDED).any():
                raise Wrong(f"{what}: memory {side} the tensor was written to")

    def check_untouched(self, first: int, what: str) -> None:
        """Raises Wrong if bytes from `first` on were written to."""
        if (self.bytes[first:] != _GUARDED).any():
            raise Wrong(f"{what}: the buffer was written to after the end of the message")

    def spoil(self) -> None:
        self.bytes[:] = _SPOILED


def difference(found: Array, wanted: Array) -> str:
    """Where two tensors of one type differ, in words."""
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return f"{found.dtype}{found.shape} instead of {wanted.dtype}{wanted.shape}"
    width = found.dtype.itemsize
    raw = found.view(np.uint8).reshape(-1, width)
    rows = (raw != wanted.view(np.uint8).reshape(-1, width)).any(axis=1)
    bad = np.flatnonzero(rows)
    first = int(bad[0])
    fresh = int((raw[bad] == _GUARDED).all(axis=1).sum())
    stale = int((raw[bad] == _SPOILED).all(axis=1).sum())
    return (
        f"{len(bad)} of {len(found)} elements are wrong, {first} to {int(bad[-1])}; element "
        f"{first} is {found[first]} instead of {wanted[first]}; {fresh} were not written, {stale} "
        "are of memory that was given back"
    )
