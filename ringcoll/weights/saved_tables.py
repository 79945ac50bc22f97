"""Tables in versions of the store: the names under which a shard is saved, and what they hold.
Pure functions.

============================================ =====================================================
``tables/<table>/values``                    of a dense table: the tensor
``tables/<table>/state.<rule>.<k>``          the arrays of state that the rule keeps for it
``tables/<table>/<shard>/ids``, ``values``   of a sparse table: the rows of each shard
``tables/<table>/<shard>/state.<rule>.<k>``  their state
``tables/<table>/<shard>/counts``            float64: pushes, weights, uses and last use of each row
============================================ =====================================================

A table that is made while the newest version has it begins with what was saved there, on any number
of servers. It has as many shards as before. Clocks begin at 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy

from ringcoll.errors import Mismatch
from ringcoll.weights.catalog_tables import Json

PREFIX = "tables/"
_NAME = re.compile(
    PREFIX + r"(.+?)/(?:\d{4}/)?(ids|counts|values|state\.\w+\.\d+)", re.DOTALL
)  # a table, and the last part of an array's name
_ALIKE = ("float64",)  # types whose state has the same type; that of others is float32


def shard_prefix(table: str, index: int) -> str:
    """What the names of a shard's arrays begin with."""
    return f"{PREFIX}{table}/{index:04}/"


def state_type(dtype: str) -> str:
    """The type of a rule's state."""
    return dtype if dtype in _ALIKE else "float32"


class Array:
    """An array of a shard in a version: its name, type and shape; where it lies in a dense tensor;
    and where its bytes are in what the server has saved."""

    def __init__(self, name: str, dtype: str, shape: list[int], place: Json | None = None) -> None:
        self.name, self.dtype, self.shape, self.place = name, dtype, shape, place
        self.start = self.bytes = 0


class SavedArray(NamedTuple):
    """An array of a shard, and its bytes."""

    array: Array
    data: numpy.ndarray


def arrays_of(table: str, index: int, spec: Json, cut: Sequence[int], said: Json) -> list[Array]:
    """The arrays of a shard in the order in which a server saves them. ``said`` is what the server
    has said of it (ringcoll_table_server_save), ``cut`` where a dense one lies."""
    prefix, rows, dtype = shard_prefix(table, index), said["rows"], spec["dtype"]
    own = prefix
    found = []
    if "row_shape" in spec:
        shape, place = [rows, *spec["row_shape"]], None
        found.append(Array(f"{prefix}ids", "int64", [rows]))
    else:
        first, length = cut
        shape, own = [length, *spec["shape"][1:]], f"{PREFIX}{table}/"
        place = {"global_shape": spec["shape"], "offset": [first, *_zeros(spec)]}
    found.append(Array(f"{prefix}counts", "float64", [rows, 4]))
    found.append(Array(f"{own}values", dtype, shape, place))
    for slot in range(len(said["state"])):
        name = f"{own}state.{said['rule']['rule']}.{slot}"
        found.append(Array(name, state_type(dtype), shape, place))
    start = 0
    lengths = [said["ids"]] if "row_shape" in spec else []
    lengths += [said["counts"], said["values"], *said["state"]]
    for array, length in zip(found, lengths, strict=True):
        array.start, array.bytes = start, length
        start += length
    return found


def _zeros(spec: Json) -> list[int]:
    return [0] * (len(spec["shape"]) - 1)


def saved_shards(table: str, tensors: Mapping[str, Any]) -> int:
    """How many shards of a table a version has; 0 if it has none of it."""
    return sum(last == "counts" for last, _ in _saved(table, tensors))


def without_replaced(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """What the next version takes over of the tensors of the one before, if tables are saved in
    ``now``: nothing of these tables, since a rule may have kept other state then."""
    tables = {table for table, _ in map(_split, now)} - {""}
    return {name: tensor for name, tensor in before.items() if _split(name)[0] not in tables}


def check_fits(table: str, spec: Json, slots: int, tensors: Mapping[str, Any]) -> None:
    """Raises Mismatch unless a table of this description can begin with what a version has of it.
    ``slots`` is how many arrays of state the rule keeps. ``tensors`` is name -> [dtype, shape, …].
    """
    state: set[str] = set()
    for last, (dtype, shape, *_) in _saved(table, tensors):
        wanted = [*shape[:1], *spec["row_shape"]] if "row_shape" in spec else spec.get("shape")
        if last == "values" and (dtype, list(shape)) != (spec["dtype"], wanted):
            raise Mismatch(
                f"table {table!r} was saved with values of {dtype} {list(shape)}, and is made with "
                f"{spec['dtype']} {wanted}: describe it as it was, or put it under another name"
            )
        if last.startswith("state."):
            state.add(last.removeprefix("state."))
    rule = spec["rule"]["rule"]
    if state != {f"{rule}.{slot}" for slot in range(slots)}:
        had = "without state of a rule"
        if state:
            name = min(state).rpartition(".")[0]
            had = f"with the state of the rule {name} (arrays: {len(state)})"
        raise Mismatch(
            f"table {table!r} was saved {had}, and is made with {rule} (arrays: {slots})"
        )


def _saved(table: str, tensors: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The last parts of the names of a table's arrays, and what they are."""
    for name, tensor in tensors.items():
        owner, last = _split(name)
        if owner == table:
            yield last, tensor


def _split(name: str) -> tuple[str, str]:
    """The table of an array, and the last part of the array's name; "" if it is of no table."""
    found = _NAME.fullmatch(name) if name.startswith(PREFIX) else None
    return (found[1], found[2]) if found else ("", "")
