"""Checks of what the ranks of a commit have put, and who copies what."""

from __future__ import annotations

import pytest

from ringcoll.errors import InvalidArgument, Mismatch
from ringcoll.weights.stages import make_plan


def _whole(name: str, shape: list[int], dtype: str = "float32") -> list[object]:
    return [name, dtype, shape, None, None]


def test_tensors_that_all_ranks_have_are_shared_out_by_bytes() -> None:
    entries = [_whole("a", [100]), _whole("b", [60]), _whole("c", [50])]
    plan = make_plan({0: entries, 1: entries})
    assert plan.copies == {0: [0], 1: [1, 2]}
    assert plan == make_plan({1: entries, 0: entries})


def test_a_slice_that_several_ranks_have_is_copied_once() -> None:
    top, bottom = ["w", "int8", [4, 2], [0, 0], [2, 2]], ["w", "int8", [4, 2], [2, 0], [2, 2]]
    plan = make_plan({0: [top], 1: [bottom], 2: [top], 3: [bottom]})
    assert sum(map(len, plan.copies.values())) == 2
    assert sorted(part.place.offset for part in plan.tensors["w"][2]) == [(0, 0), (2, 0)]


def test_ranks_may_put_different_tensors() -> None:
    plan = make_plan({0: [_whole("a", [2])], 1: [_whole("b", [3])], 2: []})
    assert plan.copies == {0: [0], 1: [0], 2: []}


def test_empty_tensors_have_no_pieces() -> None:
    plan = make_plan({0: [_whole("a", [0, 5]), _whole("b", [])]})
    assert plan.tensors["a"] == ("float32", (0, 5), [])
    assert plan.copies == {0: [1]}


def test_types_and_shapes_that_differ_are_told_with_both_values() -> None:
    with pytest.raises(Mismatch, match=r"float32 \[2\] on rank 0, and float64 \[2\] on rank 1"):
        make_plan({0: [_whole("a", [2])], 1: [_whole("a", [2], "float64")]})
    with pytest.raises(Mismatch, match=r"\[2\] on rank 0, and float32 \[3\] on rank 1"):
        make_plan({0: [_whole("a", [2])], 1: [_whole("a", [3])]})


def test_overlaps_and_gaps_are_told() -> None:
    def row(begin: int, length: int) -> list[object]:
        return ["w", "int8", [4], [begin], [length]]

    with pytest.raises(
        InvalidArgument, match=r"rank 0 has \[3\] at \[0\], and rank 1 has \[2\] at \[2\]"
    ):
        make_plan({0: [row(0, 3)], 1: [row(2, 2)]})
    with pytest.raises(InvalidArgument, match="1 of the 4 elements of 'w' are in no slice"):
        make_plan({0: [row(0, 1)], 1: [row(2, 2)]})
    with pytest.raises(InvalidArgument, match="not within"):
        make_plan({0: [row(3, 2)]})
