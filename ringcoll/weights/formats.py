"""The layouts of .npy and safetensors files, computed from a manifest without the data.

A :class:`Layout` is a header and the places of tensors after it. Both the exporter and the FUSE
file system use it. The data of each tensor are in C order and little-endian.

In both formats the data start at a multiple of 64 bytes. safetensors allows no gap between tensors,
so the order of the tensors keeps them aligned: first those whose size is a multiple of 64, then the
others by falling element size. So each tensor whose element size is a power of two is aligned to
its elements.
"""

from __future__ import annotations

import bisect
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ringcoll.errors import InvalidArgument
from ringcoll.weights import dtypes

ALIGNMENT = 64


@dataclass(frozen=True)
class Tensor:
    """What a manifest says of one tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @cached_property
    def bytes(self) -> int:
        return math.prod(self.shape) * dtypes.find(self.dtype).size


@dataclass(frozen=True)
class Manifest:
    """One version: its number, its tensors, the metadata of its commit, and when it was committed,
    in seconds since 1970."""

    version: int
    tensors: tuple[Tensor, ...]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    time: float = 0.0

    @property
    def bytes(self) -> int:
        return sum(tensor.bytes for tensor in self.tensors)


@dataclass(frozen=True)
class Slot:
    """Where the data of a tensor lie in a file."""

    name: str
    start: int
    bytes: int


@dataclass(frozen=True)
class Piece:
    """A part of a tensor's data, and the memory that it goes to."""

    name: str
    offset: int
    out: memoryview


class Layout:
    """A file: a header, then tensors without gaps."""

    def __init__(self, header: bytes, slots: Sequence[Slot]) -> None:
        self.header = header
        self.slots = [slot for slot in slots if slot.bytes]
        self._starts = [slot.start for slot in self.slots]
        self.size = len(header) + sum(slot.bytes for slot in self.slots)

    def plan(self, offset: int, out: memoryview) -> Iterator[Piece]:
        """Splits a read at ``offset`` of the file. Copies what comes from the header, and yields
        the rest. Precondition: the read ends within the file."""
        end = offset + len(out)
        if offset < len(self.header):
            part = self.header[offset:end]
            out[: len(part)] = part
        index = max(0, bisect.bisect_right(self._starts, offset) - 1)
        while index < len(self.slots) and self.slots[index].start < end:
            slot = self.slots[index]
            first, last = max(offset, slot.start), min(end, slot.start + slot.bytes)
            if first < last:
                yield Piece(slot.name, first - slot.start, out[first - offset : last - offset])
            index += 1


def npy_layout(tensor: Tensor) -> Layout:
    """The .npy file (version 1.0) of a tensor: the same bytes that ``numpy.save`` writes."""
    header = io.BytesIO()
    try:
        np.lib.format.write_array_header_1_0(
            header,
            {
                "descr": np.lib.format.dtype_to_descr(dtypes.find(tensor.dtype).numpy),
                "fortran_order": False,
                "shape": tuple(tensor.shape),
            },
        )
    except ValueError as error:
        raise InvalidArgument(f"tensor {tensor.name!r} has no .npy form: {error}") from None
    start = header.tell()
    return Layout(header.getvalue(), [Slot(tensor.name, start, tensor.bytes)])


def safetensors_layout(manifest: Manifest) -> Layout:
    """The safetensors file of a version. Its ``__metadata__`` have "version", "metadata" (those of
    the commit, as JSON), "format", which transformers wants, and, if there are tensors that are
    stored as bytes, "dtypes" (their names and types, as JSON)."""
    entries: dict[str, Any] = {}
    opaque: dict[str, str] = {}
    offset = 0
    for tensor in sorted(manifest.tensors, key=_place):
        dtype = dtypes.find(tensor.dtype)
        shape = list(tensor.shape)
        if not dtype.code:
            opaque[tensor.name] = tensor.dtype
            shape.append(dtype.size)
        end = offset + tensor.bytes
        entries[tensor.name] = {
            "dtype": dtype.code or "U8",
            "shape": shape,
            "data_offsets": [offset, end],
        }
        offset = end
    about = {
        "format": "pt",
        "version": str(manifest.version),
        "metadata": _json(dict(manifest.metadata)),
    }
    if opaque:
        about["dtypes"] = _json(opaque)
    text = _json({"__metadata__": about, **entries}).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    header = len(text).to_bytes(8, "little") + text
    places = [(name, entry["data_offsets"]) for name, entry in entries.items()]
    slots = [Slot(name, len(header) + first, last - first) for name, (first, last) in places]
    return Layout(header, slots)


def _place(tensor: Tensor) -> tuple[bool, int, str]:
    return bool(tensor.bytes % ALIGNMENT), -dtypes.find(tensor.dtype).size, tensor.name


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), default=str)
