"""Tensors read from .npy and safetensors files that a user has written.

Nothing in such a file is trusted: each number is checked against the size of the file. The data are
copied by read(2) and never mapped, since a file that became shorter would end the process.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, BinaryIO, TypeGuard

import numpy as np

from ringcoll.errors import InvalidArgument
from ringcoll.weights import dtypes
from ringcoll.weights.dtypes import DType
from ringcoll.weights.names import SUFFIX, paths_of

SAFETENSORS_SUFFIX = ".safetensors"
METADATA_FILE = "metadata.json"

# The limit that the safetensors library has.
_HEADER_BYTES = 100_000_000
_NPY_HEADER_CHARACTERS = 1 << 16
_METADATA_BYTES = 1 << 20
# What safetensors_layout() puts into __metadata__ itself.
_OWN_METADATA = {"format", "version", "metadata", "dtypes"}


@dataclass
class FileTensor:
    """A tensor whose data are at ``start`` of an open file, in C order."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    descriptor: int
    start: int

    def read_into(self, out: memoryview, offset: int = 0) -> None:
        """Copies data from byte ``offset`` on. Raises OSError if the file ends before."""
        out = out.cast("B")
        while len(out):
            count = os.preadv(self.descriptor, [out], self.start + offset)
            if not count:
                raise OSError(f"tensor {self.name!r}: the file became shorter while it was read")
            out, offset = out[count:], offset + count


@dataclass
class MemoryTensor:
    """A tensor whose data are in memory."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: memoryview

    @property
    def bytes(self) -> int:
        return len(self.data)

    def read_into(self, out: memoryview, offset: int = 0) -> None:
        out = out.cast("B")
        out[:] = self.data[offset : offset + len(out)]


@dataclass
class Incoming:
    """The tensors and metadata of some files. Must be closed, which closes the files."""

    tensors: dict[str, FileTensor | MemoryTensor] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    _files: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _origins: dict[str, str] = field(default_factory=dict)

    def add_file(self, path: str, file: BinaryIO, dtype: str | None = None) -> None:
        """Adds the content of an open file, and takes the file over. ``path`` says by its end which
        kind of file it is, and the name of the tensor of a .npy file. ``dtype`` is the true type of
        the elements of a .npy file, if it is not what the file says.

        Raises InvalidArgument, which names the file, if the file is malformed.
        """
        self._files.enter_context(file)
        try:
            if path == METADATA_FILE:
                self.metadata |= _read_metadata(file)
            elif path.endswith(SUFFIX):
                name = path.removesuffix(SUFFIX)
                self._add(path, _read_npy(name, file, dtype))
            elif path.endswith(SAFETENSORS_SUFFIX):
                tensors, metadata = _read_safetensors(file)
                self.metadata = metadata | self.metadata
                for tensor in tensors:
                    self._add(path, tensor)
            else:
                raise InvalidArgument(
                    f"it is neither {SUFFIX}, {SAFETENSORS_SUFFIX} nor {METADATA_FILE}"
                )
        except (InvalidArgument, ValueError, RecursionError) as error:
            raise InvalidArgument(f"{path}: {error}") from None

    def check(self) -> None:
        """Raises InvalidArgument if there is no tensor, or if the names cannot all be files."""
        if not self.tensors:
            raise InvalidArgument("there is no tensor in it")
        paths_of(self.tensors)

    def close(self) -> None:
        self._files.close()

    def _add(self, path: str, tensor: FileTensor | MemoryTensor) -> None:
        if tensor.name in self.tensors:
            raise InvalidArgument(f"tensor {tensor.name!r} is in {self._origins[tensor.name]} too")
        self.tensors[tensor.name] = tensor
        self._origins[tensor.name] = path


def _read_npy(name: str, file: BinaryIO, dtype: str | None) -> FileTensor | MemoryTensor:
    version = np.lib.format.read_magic(file)
    readers: dict[tuple[int, int], Callable[..., Any]] = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in readers:
        raise InvalidArgument(f"version {version[0]}.{version[1]} of .npy is not understood")
    shape, fortran, numpy_type = readers[version](file, max_header_size=_NPY_HEADER_CHARACTERS)
    if any(length < 0 for length in shape):
        raise InvalidArgument(f"shape {shape} is negative")
    start = file.tell()
    found = _true_type(numpy_type, dtype)
    size = math.prod(shape) * found.size
    actual = os.fstat(file.fileno()).st_size - start
    if actual != size:
        raise InvalidArgument(f"it has {actual} bytes of data, and its header says {size}")
    if fortran and len(shape) > 1:
        file.seek(start)
        array = np.frombuffer(file.read(), numpy_type).reshape(shape, order="F")
        data = np.ascontiguousarray(array).tobytes()
        return MemoryTensor(name, found.name, tuple(shape), memoryview(data))
    return FileTensor(name, found.name, tuple(shape), size, file.fileno(), start)


def _true_type(found: np.dtype, wanted: str | None) -> DType:
    """What the elements of a .npy file are. ``numpy.save`` writes ml_dtypes' bfloat16 as the opaque
    type "V2", which could be anything of two bytes."""
    if wanted is not None:
        dtype = dtypes.find(wanted)
        if dtype.size != found.itemsize:
            raise InvalidArgument(f"its elements have {found.itemsize} bytes, and {wanted} has not")
        return dtype
    if found.kind == "V" and found.fields is None:
        raise InvalidArgument(
            f"its header says {found.str}, which names no type: set its extended attribute "
            "user.ringcoll.dtype, such as bfloat16"
        )
    return dtypes.of_numpy(found)


def _read_safetensors(file: BinaryIO) -> tuple[list[FileTensor], dict[str, Any]]:
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or not 2 <= length <= min(size - 8, _HEADER_BYTES):
        raise InvalidArgument(f"its header would have {length} bytes, and the file has {size}")
    header = json.loads(file.read(length).decode(), object_pairs_hook=_no_doubles)
    if not isinstance(header, dict):
        raise InvalidArgument("its header is no JSON object")
    about = header.pop("__metadata__", {})
    if not isinstance(about, dict):
        raise InvalidArgument("its __metadata__ are no JSON object")
    opaque = _object(about.get("dtypes"))
    start = 8 + length
    tensors = [
        _safetensor(name, entry, opaque.get(name), file.fileno(), start)
        for name, entry in header.items()
    ]
    _check_cover(tensors, start, size)
    others = {key: value for key, value in about.items() if key not in _OWN_METADATA}
    return tensors, others | _object(about.get("metadata"))


def _safetensor(name: str, entry: Any, true: Any, descriptor: int, start: int) -> FileTensor:
    if not isinstance(entry, dict):
        raise InvalidArgument(f"tensor {name!r} is no JSON object")
    shape, offsets = entry.get("shape"), entry.get("data_offsets")
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise InvalidArgument(f"tensor {name!r} has a malformed shape or data_offsets")
    dtype = dtypes.of_code(entry.get("dtype"))
    if dtype is None:
        raise InvalidArgument(f"tensor {name!r} has dtype {entry.get('dtype')}, which is unknown")
    size = offsets[1] - offsets[0]
    if math.prod(shape) * dtype.size != size:
        raise InvalidArgument(f"tensor {name!r} has {size} bytes, which is not its shape's size")
    if true is not None:  # bytes of a type that safetensors cannot name
        dtype = dtypes.find(str(true))
        if entry["dtype"] != "U8" or not shape or shape.pop() != dtype.size:
            raise InvalidArgument(f"tensor {name!r} cannot be of type {dtype.name}")
    return FileTensor(name, dtype.name, tuple(shape), size, descriptor, start + offsets[0])


def _check_cover(tensors: list[FileTensor], start: int, size: int) -> None:
    """The data of the tensors are all that follows the header, without gaps and overlaps."""
    position = start
    for tensor in sorted(tensors, key=lambda tensor: (tensor.start, tensor.bytes)):
        if tensor.start != position:
            raise InvalidArgument(f"tensor {tensor.name!r} overlaps another one, or follows a gap")
        position += tensor.bytes
    if position != size:
        raise InvalidArgument(f"its tensors end at byte {position}, and the file has {size}")


def _are_sizes(value: Any) -> TypeGuard[list[int]]:
    if not isinstance(value, list):
        return False
    return all(type(number) is int and 0 <= number < 1 << 63 for number in value)


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise InvalidArgument("its header has a name twice")
    return found


def _object(text: Any) -> dict[str, Any]:
    """A JSON object in a string; {} for anything else."""
    if not isinstance(text, str):
        return {}
    with contextlib.suppress(ValueError, RecursionError):
        value = json.loads(text)
        if isinstance(value, dict):
            return value
    return {}


def _read_metadata(file: BinaryIO) -> dict[str, Any]:
    value = json.loads(file.read(_METADATA_BYTES))
    if not isinstance(value, dict):
        raise InvalidArgument("it is no JSON object")
    return value
