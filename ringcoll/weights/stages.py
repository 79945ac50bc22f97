"""What the writers of a commit have put: checks, and who copies what. Pure functions.

Each rank of a writers' group sends its entries [name, dtype, shape, offset, length of axes]; the
last two are None for a whole tensor. Ranks that put the same slice of a tensor have the same bytes.
So one of them copies it, and the bytes are shared out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ringcoll.errors import InvalidArgument, Mismatch
from ringcoll.weights import slices
from ringcoll.weights.arrays import itemsize
from ringcoll.weights.slices import Slice

Entry = Sequence[Any]


class Part(NamedTuple):
    """One slice of a tensor, the rank that copies it, and the entry of that rank."""

    rank: int
    entry: int
    place: Slice


class Plan(NamedTuple):
    """What a commit consists of: name -> (dtype, shape, parts); and the entries that each rank
    copies."""

    tensors: dict[str, tuple[str, tuple[int, ...], list[Part]]]
    copies: dict[int, list[int]]


def make_plan(entries: Mapping[int, Sequence[Entry]]) -> Plan:
    """Checks the entries of all ranks and shares the bytes out. Raises Mismatch if ranks differ in
    the type or shape of a tensor, and InvalidArgument if slices overlap or leave a gap."""
    first: dict[str, tuple[str, tuple[int, ...], int]] = {}
    putters: dict[tuple[str, Slice], list[tuple[int, int]]] = {}
    for rank in sorted(entries):
        for index, (name, dtype, shape, offset, length) in enumerate(entries[rank]):
            _compare(first, rank, name, dtype, tuple(shape))
            place = Slice(tuple(offset), tuple(length)) if offset is not None else None
            place = place or slices.whole(shape)
            if not slices.fits(place, shape):
                raise InvalidArgument(
                    f"rank {rank} put a slice of {name!r} at {list(place.offset)} of shape "
                    f"{list(place.shape)}, which is not within {list(shape)}"
                )
            putters.setdefault((name, place), []).append((rank, index))
    tensors: dict[str, tuple[str, tuple[int, ...], list[Part]]] = {
        name: (dtype, shape, []) for name, (dtype, shape, _) in first.items()
    }
    for (name, place), (rank, index) in _share_out(putters, first).items():
        tensors[name][2].append(Part(rank, index, place))
    for name, (_, shape, parts) in tensors.items():
        _check_cover(name, shape, parts)
    copies: dict[int, list[int]] = {rank: [] for rank in entries}
    for _, _, parts in tensors.values():
        for part in parts:
            copies[part.rank].append(part.entry)
    return Plan(tensors, {rank: sorted(indexes) for rank, indexes in copies.items()})


def _compare(
    first: dict[str, tuple[str, tuple[int, ...], int]],
    rank: int,
    name: str,
    dtype: str,
    shape: tuple[int, ...],
) -> None:
    known, known_shape, other = first.setdefault(name, (dtype, shape, rank))
    if (known, known_shape) != (dtype, shape):
        raise Mismatch(
            f"tensor {name!r} is {known} {list(known_shape)} on rank {other}, "
            f"and {dtype} {list(shape)} on rank {rank}",
            rank,
        )


def _share_out(
    putters: Mapping[tuple[str, Slice], list[tuple[int, int]]],
    first: Mapping[str, tuple[str, tuple[int, ...], int]],
) -> dict[tuple[str, Slice], tuple[int, int]]:
    """Chooses who copies each slice: the rank that has the fewest bytes, the largest slice first.
    Equal entries give equal choices, so a tensor stays with its holder from version to version."""
    sizes = {
        key: slices.size_of(key[1].shape) * itemsize(first[key[0]][0])
        for key in putters
        if slices.size_of(key[1].shape)
    }
    load: dict[int, int] = {}
    chosen = {}
    for key in sorted(sizes, key=lambda k: (len(putters[k]) > 1, -sizes[k], k)):
        rank, index = min(putters[key], key=lambda one: (load.get(one[0], 0), one[0]))
        load[rank] = load.get(rank, 0) + sizes[key]
        chosen[key] = (rank, index)
    return chosen


def _check_cover(name: str, shape: tuple[int, ...], parts: Sequence[Part]) -> None:
    places = [part.place for part in parts]
    overlap = slices.find_overlap(places)
    if overlap:
        one, other = (parts[i] for i in overlap)
        raise InvalidArgument(
            f"slices of {name!r} overlap: {_describe(one)}, and {_describe(other)}"
        )
    lacking = slices.missing(shape, places)
    if lacking:
        raise InvalidArgument(
            f"{lacking} of the {slices.size_of(shape)} elements of {name!r} are in no slice: "
            f"there are {'; '.join(map(_describe, parts[:8])) or 'none'}"
        )


def _describe(part: Part) -> str:
    return f"rank {part.rank} has {list(part.place.shape)} at {list(part.place.offset)}"
