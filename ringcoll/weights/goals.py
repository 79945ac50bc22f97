"""What a program wants to read: slices of tensors, and the objects that they go to."""

from __future__ import annotations

from typing import Any

import numpy

from ringcoll.errors import InvalidArgument
from ringcoll.weights import arrays, slices
from ringcoll.weights.arrays import Target
from ringcoll.weights.manifest import Manifest
from ringcoll.weights.slices import Slice
from ringcoll.weights.updates import Goal


def goal_of(manifest: Manifest, name: str, out: Any, offset: Any, shape: Any) -> tuple[Goal, Any]:
    """What a tensor is read to. Returns also the object that the program gets."""
    tensor = manifest.tensor(name)
    place = _place(name, tensor.shape, out, offset, shape)
    if out is None:
        out = arrays.new_array(tensor.dtype, place.shape)
    local = arrays.locate(out).local if arrays.is_dtensor(out) else out
    return Goal(name, place, Target(local, tensor.dtype, place.shape)), out


def _place(name: str, whole: tuple[int, ...], out: Any, offset: Any, shape: Any) -> Slice:
    if arrays.is_dtensor(out):
        found = arrays.locate(out)
        if found.shape != whole:
            raise InvalidArgument(f"{name!r} has shape {list(whole)}, out {list(found.shape)}")
        return found.slice
    if offset is None and shape is None:
        return slices.whole(whole)
    begin = (0,) * len(whole) if offset is None else tuple(int(n) for n in offset)
    if shape is None:
        length = tuple(n - b for n, b in zip(whole, begin, strict=False))
    else:
        length = tuple(int(n) for n in shape)
    place = Slice(begin, length)
    if not slices.fits(place, whole):
        raise InvalidArgument(
            f"{name!r}: the slice of shape {list(length)} at {list(begin)} is not within "
            f"{list(whole)}"
        )
    return place


def all_goals(manifest: Manifest, prefix: str) -> tuple[list[Goal], dict[str, Any]]:
    goals, found = [], {}
    for name in manifest.tensors:
        if name.startswith(prefix):
            goal, found[name] = goal_of(manifest, name, None, None, None)
            goals.append(goal)
    return goals, found


def goals_of(
    manifest: Manifest,
    leaves: list[tuple[str, Any]],
    part: tuple[Any, Any] = (None, None),
) -> tuple[list[Goal], dict[str, tuple[Any, numpy.ndarray]]]:
    """What the leaves of a state dict are read to. Numbers are read to arrays."""
    goals, numbers = [], {}
    for name, leaf in leaves:
        if arrays.is_number(leaf):
            goal, array = goal_of(manifest, name, None, None, None)
            numbers[name] = (leaf, array)
        else:
            goal, _ = goal_of(manifest, name, leaf, *part)
        goals.append(goal)
    return goals, numbers


def set_numbers(out: Any, prefix: str, numbers: dict[str, tuple[Any, numpy.ndarray]]) -> Any:
    for name, (old, array) in numbers.items():
        arrays.set_leaf(out, name.removeprefix(prefix), type(old)(array.item()))
    return out
