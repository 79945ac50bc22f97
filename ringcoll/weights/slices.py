"""Rectangular slices of tensors: intersections, contiguous runs, and checks of coverage.

All functions are pure. A slice is a rectangle in the coordinates of the whole tensor. Its elements
lie in memory in row-major order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy

Shape = tuple[int, ...]


class Slice(NamedTuple):
    """A rectangle: where it begins in the whole tensor, and how long it is on each axis."""

    offset: Shape
    shape: Shape


class Runs(NamedTuple):
    """Contiguous runs that two layouts share: byte offsets in both, and the length of every run."""

    source: numpy.ndarray
    target: numpy.ndarray
    length: int


def whole(shape: Sequence[int]) -> Slice:
    """The slice that is the whole tensor."""
    return Slice((0,) * len(shape), tuple(shape))


def size_of(shape: Sequence[int]) -> int:
    """The number of elements."""
    return math.prod(shape)


def fits(part: Slice, shape: Sequence[int]) -> bool:
    """Whether ``part`` lies within a tensor of this shape."""
    return len(part.offset) == len(part.shape) == len(shape) and all(
        begin >= 0 and length >= 0 and begin + length <= limit
        for begin, length, limit in zip(part.offset, part.shape, shape, strict=True)
    )


def intersect(a: Slice, b: Slice) -> Slice | None:
    """What two slices share, or None if that is empty."""
    offset = tuple(map(max, a.offset, b.offset))
    shape = tuple(
        min(begin_a + length_a, begin_b + length_b) - begin
        for begin, begin_a, length_a, begin_b, length_b in zip(
            offset, a.offset, a.shape, b.offset, b.shape, strict=True
        )
    )
    return Slice(offset, shape) if all(length > 0 for length in shape) else None


def runs(part: Slice, source: Slice, target: Slice, itemsize: int) -> Runs:
    """The longest runs of ``part`` that are contiguous in the memory of both slices.

    ``part`` must lie within both and must not be empty. The runs are ordered by their place in
    ``part``.
    """
    axes = len(part.shape)
    length = itemsize
    axis = axes
    while axis > 0:
        axis -= 1
        length *= part.shape[axis]
        if not part.shape[axis] == source.shape[axis] == target.shape[axis]:
            break
    outer = part.shape[:axis]
    return Runs(
        _starts(part, source, outer, itemsize), _starts(part, target, outer, itemsize), length
    )


def span(part: Slice, layout: Slice, itemsize: int) -> tuple[int, int]:
    """The byte offset and length of the shortest stretch of ``layout`` that contains ``part``."""
    steps = strides(layout.shape, itemsize)
    first = _place(part.offset, layout.offset, steps)
    last = first + sum((length - 1) * step for length, step in zip(part.shape, steps, strict=True))
    return first, last + itemsize - first


def find_overlap(slices: Sequence[Slice]) -> tuple[int, int] | None:
    """The indexes of two slices that share an element, or None.

    The slices are sorted along the axis that divides them most, so regular shardings take n log n
    steps.
    """
    if len(slices) < 2 or not slices[0].shape:
        return (0, 1) if len(slices) > 1 else None
    axis = max(range(len(slices[0].shape)), key=lambda a: len({s.offset[a] for s in slices}))
    order = sorted(range(len(slices)), key=lambda i: slices[i].offset[axis])
    active: list[int] = []
    for index in order:
        begin = slices[index].offset[axis]
        active = [i for i in active if slices[i].offset[axis] + slices[i].shape[axis] > begin]
        for other in active:
            if intersect(slices[other], slices[index]):
                return min(other, index), max(other, index)
        active.append(index)
    return None


def missing(shape: Sequence[int], slices: Sequence[Slice]) -> int:
    """How many elements of a tensor no slice has. The slices must not overlap."""
    return size_of(shape) - sum(size_of(each.shape) for each in slices)


def strides(shape: Sequence[int], itemsize: int) -> list[int]:
    """The bytes between neighbours on each axis, in row-major order."""
    found = [itemsize] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        found[axis] = found[axis + 1] * shape[axis + 1]
    return found


def _place(offset: Sequence[int], origin: Sequence[int], steps: Sequence[int]) -> int:
    return sum((o - b) * s for o, b, s in zip(offset, origin, steps, strict=True))


def _starts(part: Slice, layout: Slice, outer: Shape, itemsize: int) -> numpy.ndarray:
    steps = strides(layout.shape, itemsize)
    starts = numpy.array([_place(part.offset, layout.offset, steps)], numpy.int64)
    for axis, length in enumerate(outer):
        along = numpy.arange(length, dtype=numpy.int64) * steps[axis]
        starts = (starts[:, None] + along).reshape(-1)
    return starts
