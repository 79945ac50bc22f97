"""Rectangles, their runs in memory, and checks of coverage, against NumPy."""

from __future__ import annotations

import random

import numpy
import pytest

from ringcoll.weights import slices
from ringcoll.weights.slices import Slice


def _random_slice(rng: random.Random, shape: list[int]) -> Slice:
    offset = [rng.randrange(n) for n in shape]
    return Slice(
        tuple(offset), tuple(rng.randint(1, n - o) for n, o in zip(shape, offset, strict=True))
    )


def _array(whole: numpy.ndarray, part: Slice) -> numpy.ndarray:
    where = tuple(slice(o, o + n) for o, n in zip(part.offset, part.shape, strict=True))
    return whole[where]


@pytest.mark.parametrize("seed", range(300))
def test_runs_bring_every_element_to_its_place(seed: int) -> None:
    rng = random.Random(seed)
    shape = [rng.randint(1, 5) for _ in range(rng.randint(1, 4))]
    whole = numpy.arange(numpy.prod(shape), dtype=numpy.uint16).reshape(shape)
    source, target = _random_slice(rng, shape), _random_slice(rng, shape)
    part = slices.intersect(source, target)
    data = numpy.ascontiguousarray(_array(whole, source)).reshape(-1).view(numpy.uint8)
    expected = numpy.zeros_like(_array(whole, target))
    out = numpy.zeros(expected.nbytes, numpy.uint8)
    if part is not None:
        runs = slices.runs(part, source, target, 2)
        for begin, end in zip(runs.source, runs.target, strict=True):
            out[end : end + runs.length] = data[begin : begin + runs.length]
        inner = Slice(
            tuple(p - t for p, t in zip(part.offset, target.offset, strict=True)), part.shape
        )
        _array(expected, inner)[...] = _array(whole, part)
        assert len(runs.source) * runs.length == 2 * slices.size_of(part.shape)
        first, length = slices.span(part, source, 2)
        assert first == runs.source.min()
        assert first + length == runs.source.max() + runs.length
    assert out.tobytes() == expected.tobytes()


def test_runs_are_as_long_as_both_layouts_allow() -> None:
    whole = slices.whole((4, 6, 8))
    rows = Slice((1, 0, 0), (2, 6, 8))
    assert slices.runs(rows, whole, rows, 4).length == 2 * 6 * 8 * 4
    columns = Slice((0, 2, 0), (4, 3, 8))
    assert slices.runs(columns, whole, columns, 4).length == 3 * 8 * 4
    scalar = slices.whole(())
    assert slices.runs(scalar, scalar, scalar, 8).length == 8


def test_intersect_is_empty_where_slices_only_touch() -> None:
    assert slices.intersect(Slice((0,), (3,)), Slice((3,), (3,))) is None
    assert slices.intersect(Slice((), ()), Slice((), ())) == Slice((), ())


@pytest.mark.parametrize("seed", range(100))
def test_overlaps_are_found(seed: int) -> None:
    rng = random.Random(seed)
    shape = [rng.randint(1, 6) for _ in range(rng.randint(1, 3))]
    several = [_random_slice(rng, shape) for _ in range(rng.randint(0, 6))]
    pairs = {
        (i, j)
        for i in range(len(several))
        for j in range(i)
        if slices.intersect(several[i], several[j])
    }
    found = slices.find_overlap(several)
    assert (found is not None) == bool(pairs)
    if found is not None:
        assert found[::-1] in pairs
    else:
        marks = numpy.zeros(shape, int)
        for each in several:
            _array(marks, each)[...] += 1
        assert slices.missing(shape, several) == int((marks == 0).sum())


def test_fits() -> None:
    assert slices.fits(Slice((0, 0), (2, 3)), (2, 3))
    assert not slices.fits(Slice((1, 0), (2, 3)), (2, 3))
    assert not slices.fits(Slice((-1, 0), (1, 3)), (2, 3))
    assert not slices.fits(Slice((0,), (2,)), (2, 3))
