"""Arguments of pushes and pulls: checked, and as the library takes them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy

from ringcoll.errors import InvalidArgument
from ringcoll.weights import arrays
from ringcoll.weights.arrays import Target
from ringcoll.weights.catalog import Json

_HALVES = ("float16", "bfloat16")  # pushes to tables of these types may be float32 as well


class Layout(NamedTuple):
    """What values of a table look like: ``shape`` is that of a row, or of the whole if the table is
    dense."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    is_sparse: bool

    @classmethod
    def of(cls, spec: Json) -> Layout:
        is_sparse = "row_shape" in spec
        shape = tuple(spec["row_shape" if is_sparse else "shape"])
        return cls(spec["name"], spec["dtype"], shape, is_sparse)

    def values_shape(self, ids: numpy.ndarray | None) -> tuple[int, ...]:
        """The shape of the values of these rows."""
        return self.shape if ids is None else (len(ids), *self.shape)

    def ids(self, ids: Any) -> numpy.ndarray | None:
        """The ids of rows as int64, or None for all of a dense table. Raises InvalidArgument."""
        if not self.is_sparse:
            if ids is not None:
                raise InvalidArgument(
                    f"table {self.name!r} is dense: pass None as ids, and the whole tensor as "
                    "values"
                )
            return None
        if ids is None:
            raise InvalidArgument(f"table {self.name!r} is sparse: pass the ids of rows")
        found = self._integers(ids)
        if found.ndim != 1:
            raise InvalidArgument(
                f"table {self.name!r}: ids have the shape {list(found.shape)}: pass one dimension, "
                "such as ids.reshape(-1)"
            )
        return numpy.ascontiguousarray(found)

    def _integers(self, ids: Any) -> numpy.ndarray:
        try:
            found = numpy.asarray(ids)
            if found.size == 0:
                return found.astype(numpy.int64)
            if found.dtype.kind in "iu" and not (found.dtype == "uint64" and found.max() >> 63):
                return found.astype(numpy.int64, copy=False)
            what = f"{found.dtype}, such as {found.reshape(-1)[0]!r}"
        except (ValueError, TypeError, OverflowError, RuntimeError) as error:
            what = str(error)
        raise InvalidArgument(
            f"table {self.name!r}: ids are integers of 64 bits with a sign, not {what}; hash other "
            "keys to integers"
        )

    def values(self, values: Any, ids: numpy.ndarray | None) -> numpy.ndarray:
        """The bytes of values. Raises InvalidArgument if they do not fit the table and the ids."""
        found = arrays.facts(values)
        allowed = [self.dtype, "float32"] if self.dtype in _HALVES else [self.dtype]
        if found.dtype not in allowed:
            raise InvalidArgument(
                f"table {self.name!r} takes values of {' or '.join(allowed)}, not {found.dtype}: "
                "convert them first"
            )
        wanted = self.values_shape(ids)
        if found.shape != wanted:
            raise InvalidArgument(self._shape_problem(found.shape, wanted, ids))
        return arrays.bytes_of(values)

    def dtype_of(self, values: numpy.ndarray | None, ids: numpy.ndarray | None) -> str:
        """The type of what :meth:`values` has returned: that of the table, or float32."""
        if values is None or self.dtype not in _HALVES:
            return self.dtype
        is_half = values.nbytes == 2 * math.prod(self.values_shape(ids))
        return self.dtype if is_half else "float32"

    def _shape_problem(
        self, shape: tuple[int, ...], wanted: tuple[int, ...], ids: numpy.ndarray | None
    ) -> str:
        if ids is not None and shape[1:] == wanted[1:] and len(shape) == len(wanted):
            return (
                f"table {self.name!r}: there are {len(ids)} ids and {shape[0]} rows of values: "
                "pass one row for each id"
            )
        return (
            f"table {self.name!r}: values have the shape {list(shape)}, and these rows have "
            f"{list(wanted)}"
        )

    def target(self, out: Any, ids: numpy.ndarray | None) -> tuple[Any, Target]:
        """What a pull returns, and where its bytes go: ``out``, or a new array."""
        shape = self.values_shape(ids)
        if out is None:
            out = arrays.new_array(self.dtype, shape)
        return out, Target(out, self.dtype, shape)


def weight_of(weight: Any) -> float:
    """The weight of a push. Raises InvalidArgument."""
    try:
        found = float(weight)
    except (TypeError, ValueError):
        found = math.nan
    if not (math.isfinite(found) and found > 0):
        raise InvalidArgument(f"weight={weight!r}: it is a finite number above 0")
    return found
