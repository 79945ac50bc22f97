"""Rules in Python, as servers run them. See :class:`ringcoll.rules.Python`."""

from __future__ import annotations

import base64
import json
import pickle

import numpy

from ringcoll import _core


class PythonRule:
    """A rule of one shard."""

    def __init__(self, data: bytes) -> None:
        described = json.loads(data)
        self._shape: list[int] = described["shape"]
        self._update = pickle.loads(base64.b64decode(described["pickle"]))

    def apply(
        self, id: int, dtype: str, value: memoryview, push_dtype: str, push: memoryview
    ) -> None:
        """Updates a row. Nothing of the memory is kept, since it is gone afterwards."""
        updated = _array_of(value, dtype).reshape(self._shape)
        self._update(id, updated, _array_of(push, push_dtype).reshape(self._shape))
        value.cast("B")[:] = _bytes_of(updated, dtype)

    def save(self) -> bytes:
        """What an equal rule is made of."""
        pickled = base64.b64encode(pickle.dumps(self._update)).decode()
        return json.dumps({"shape": self._shape, "pickle": pickled}).encode()


def install() -> None:
    """From now on, servers of this process run such rules."""
    _core.table_rules("python", PythonRule)


def _array_of(memory: memoryview, dtype: str) -> numpy.ndarray:
    """A copy."""
    if dtype != "bfloat16":
        return numpy.frombuffer(memory, dtype).copy()
    upper = numpy.frombuffer(memory, numpy.uint16).astype(numpy.uint32)
    return (upper << 16).view(numpy.float32)


def _bytes_of(array: numpy.ndarray, dtype: str) -> bytes:
    if dtype != "bfloat16":
        return array.tobytes()
    bits = array.view(numpy.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16  # to nearest, ties to even
    return numpy.where(numpy.isnan(array), 0x7FC0, rounded).astype(numpy.uint16).tobytes()
