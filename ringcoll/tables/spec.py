"""Descriptions of tables: what a program says, checked and as the library takes it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ringcoll import _core
from ringcoll.errors import InvalidArgument
from ringcoll.rules import Assign, Python, Rule, Sum
from ringcoll.weights.catalog import Json

TYPES = (
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
)
MOST_SHARDS = 4096
_MOST_NAME = 255
_MOST_ELEMENTS = 1 << 40
_MOST_COUNT = 1 << 31  # of rows of a shard, and of clocks
_ELEMENTS_OF_ROW = 16384  # of a dense table: rows so long that what is stored beside is little


@dataclass(frozen=True)
class Uniform:
    """Begins rows with random numbers from ``low`` on, below ``high``. They follow from the seed
    and the row's id alone."""

    low: float
    high: float
    seed: int = 0


@dataclass(frozen=True)
class Normal:
    """Begins rows with normally distributed numbers, that follow from the seed and the row's id
    alone."""

    mean: float
    deviation: float
    seed: int = 0


Initial = float | Uniform | Normal


def describe(
    name: str,
    shape: Any,
    row_shape: Any,
    dtype: Any,
    rule: Rule,
    staleness: int | None,
    quorum: int | None,
    grace_s: float,
    max_rows: int | None,
    evict: str,
    initial: Initial,
    shards: int | None = None,
) -> Json:
    """The description of a table. Two are equal if the tables are. Raises InvalidArgument, which
    names the argument and what it may be."""
    if not isinstance(name, str) or not 0 < len(name.encode(errors="replace")) <= _MOST_NAME:
        raise InvalidArgument(f"a table's name is a text of 1 to {_MOST_NAME} bytes, not {name!r}")
    spec: Json = {"name": name, "dtype": _dtype(dtype)}
    if shape is not None:
        if row_shape is not None:
            raise InvalidArgument(
                f"table {name!r}: shape= makes a dense table, row_shape= a sparse one: pass one"
            )
        spec["shape"] = _shape("shape", shape)
        spec["stretch"] = max(1, _ELEMENTS_OF_ROW // math.prod(spec["shape"][1:]))
        if isinstance(rule, Python) or shards == 1:
            spec["stretch"] = max([1, *spec["shape"][:1]])  # one row
    else:
        spec["row_shape"] = _shape("row_shape", row_shape)
    spec["rule"] = rule_of(rule, spec)
    _add_consistency(spec, staleness, quorum, grace_s)
    _add_eviction(spec, max_rows, evict)
    spec["initial"] = _initial(initial, spec["dtype"])
    return spec


def rows_of(spec: Json) -> int | None:
    """How many rows a dense table has; None for a sparse one."""
    if "shape" not in spec:
        return None
    leading = spec["shape"][0] if spec["shape"] else 1
    return int((leading - 1) // spec["stretch"] + 1)


def slots_of(spec: Json) -> int:
    """How many arrays of state the rule keeps."""
    return int(json.loads(_core.table_describe(json.dumps(spec), 1))["state_slots"])


def rule_of(rule: Rule, spec: Json) -> Json:
    """A rule's name and parameters, for a table with these types and shapes. Raises InvalidArgument
    if its values cannot have the rule."""
    dtype = spec["dtype"]
    if not isinstance(rule, Rule):
        raise InvalidArgument(f"rule={rule!r} is no rule: pass one of ringcoll.rules")
    if isinstance(rule, Python):
        of_python: Json = json.loads(rule.spec_for(_row_shape(spec)))
        return of_python
    if not isinstance(rule, (Sum, Assign)) and "float" not in dtype:
        raise InvalidArgument(
            f"the rule {type(rule).__name__} is for floating-point values, not {dtype}: use Sum, "
            "Assign, Python or another dtype"
        )
    found: Json = json.loads(rule.spec())
    return found


def _row_shape(spec: Json) -> list[int]:
    """That of a row; -1 for what a dense table is cut along."""
    if "row_shape" in spec:
        return list(spec["row_shape"])
    return [-1, *spec["shape"][1:]] if spec["shape"] else []


def check_shards(shards: Any, rows: int | None) -> int | None:
    """The number of shards that a program has asked for. None: as many as fit."""
    if shards is None:
        return None
    count = _integer("shards", shards, 1, MOST_SHARDS)
    if rows is not None and count > rows:
        raise InvalidArgument(
            f"shards={count}: the table has {rows} rows, and each shard at least one of them"
        )
    return count


def _dtype(dtype: Any) -> str:
    name = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", None) or str(dtype)
    name = name.removeprefix("torch.")
    if name not in TYPES:
        raise InvalidArgument(f"dtype={dtype!r}: values have one of the types {', '.join(TYPES)}")
    return name


def _shape(name: str, shape: Any) -> list[int]:
    sizes = list(shape) if isinstance(shape, Sequence) else [shape]
    try:
        found = [_integer(name, size, 1, _MOST_ELEMENTS) for size in sizes]
    except InvalidArgument:
        found = [0]
    if not 0 < math.prod(found) <= _MOST_ELEMENTS:
        raise InvalidArgument(
            f"{name}={shape!r}: it has integers of at least 1, and at most {_MOST_ELEMENTS} "
            "elements"
        )
    return found


def _add_consistency(spec: Json, staleness: Any, quorum: Any, grace_s: Any) -> None:
    spec["staleness"] = _optional("staleness", staleness, 0)
    spec["quorum"] = _optional("quorum", quorum, 1)
    if quorum is not None and staleness is None:
        raise InvalidArgument(f"quorum={quorum} is of workers at a clock: pass staleness= as well")
    if grace_s and quorum is None:
        raise InvalidArgument(f"grace_s={grace_s}: the time before a quorum counts; pass quorum=")
    if quorum is not None:
        spec["grace_s"] = _number("grace_s", grace_s)
        if spec["grace_s"] < 0:
            raise InvalidArgument(f"grace_s={grace_s} is negative: it is a number of seconds")


def _add_eviction(spec: Json, max_rows: Any, evict: Any) -> None:
    spec["max_rows"] = _optional("max_rows", max_rows, 1)
    if max_rows is not None and "shape" in spec:
        raise InvalidArgument(f"max_rows={max_rows}: a dense table has all its rows; leave it out")
    if evict not in ("age", "use"):
        raise InvalidArgument(f'evict={evict!r} is neither "age" nor "use"')
    if max_rows is not None:
        spec["evict"] = evict


def _initial(initial: Any, dtype: str) -> Json:
    if isinstance(initial, (Uniform, Normal)) and "float" not in dtype:
        raise InvalidArgument(f"initial={initial!r}: random numbers are for floating-point values")
    if isinstance(initial, Uniform):
        low, high = _number("initial.low", initial.low), _number("initial.high", initial.high)
        if low > high:
            raise InvalidArgument(f"initial={initial!r}: low is above high")
        return {"kind": "uniform", "low": low, "high": high, "seed": _seed(initial)}
    if isinstance(initial, Normal):
        mean, std = _number("initial.mean", initial.mean), _number("initial", initial.deviation)
        if std < 0:
            raise InvalidArgument(f"initial={initial!r}: the deviation is negative")
        return {"kind": "normal", "mean": mean, "std": std, "seed": _seed(initial)}
    value = _number("initial", initial)
    if "float" not in dtype and value != int(value):
        raise InvalidArgument(f"initial={initial!r} is no value of {dtype}: pass an integer")
    return {"kind": "constant", "value": value} if value else {"kind": "zeros"}


def _seed(initial: Uniform | Normal) -> int:
    return _integer("initial.seed", initial.seed, 0, (1 << 63) - 1)


def _optional(name: str, value: Any, least: int) -> int | None:
    return None if value is None else _integer(name, value, least, _MOST_COUNT)


def _integer(name: str, value: Any, least: int, most: int) -> int:
    try:
        found = value.__index__()
    except AttributeError:
        found = None
    if found is None or isinstance(value, bool) or not least <= found <= most:
        raise InvalidArgument(f"{name}={value!r}: it is an integer from {least} to {most}")
    return int(found)


def _number(name: str, value: Any) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = math.nan
    if not math.isfinite(found):
        raise InvalidArgument(f"{name}={value!r}: it is a finite number")
    return found
