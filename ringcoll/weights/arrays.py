"""Tensors of any library: what they are, their bytes, and places to put bytes into.

This module does not import torch. There can be torch tensors only if the program has imported it.
Tensors of other libraries than NumPy and torch are read through ``__array__``, DLPack or the buffer
protocol.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy

from ringcoll.errors import InvalidArgument
from ringcoll.weights import dtypes
from ringcoll.weights.slices import Slice, whole

Shape = tuple[int, ...]


class Facts(NamedTuple):
    """Type and shape of a tensor."""

    dtype: str
    shape: Shape


class Place(NamedTuple):
    """Which slice of a tensor of which shape an object stands for, and the object that has its
    data: for a DTensor the local tensor."""

    local: Any
    shape: Shape
    slice: Slice


@functools.lru_cache(maxsize=256)
def itemsize(dtype: str) -> int:
    """The bytes of one element. Raises InvalidArgument for an unknown type."""
    return dtypes.find(dtype).size


@functools.lru_cache(maxsize=256)
def numpy_dtype(dtype: str) -> numpy.dtype[Any]:
    """NumPy's type of this name. Raises InvalidArgument if NumPy lacks it and ml_dtypes does not
    provide it either."""
    found = dtypes.find(dtype)
    if found.numpy.name == dtype or found.numpy.str == dtype:
        return found.numpy
    try:
        import ml_dtypes

        found_there: numpy.dtype[Any] = numpy.dtype(getattr(ml_dtypes, dtype))
        return found_there
    except (ImportError, AttributeError, TypeError):
        raise InvalidArgument(
            f"NumPy has no type {dtype}: pass out=, such as a torch tensor, or install ml_dtypes"
        ) from None


def facts(x: Any) -> Facts:
    """What a tensor is. Raises InvalidArgument if it is none, or not in host memory."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        _check_torch(x, torch)
        return Facts(str(x.dtype)[6:], tuple(x.shape))
    array = _as_array(x)
    return Facts(_name_of(array.dtype), array.shape)


@functools.lru_cache(maxsize=256)  # NumPy composes the name anew each time, slowly
def _name_of(dtype: numpy.dtype[Any]) -> str:
    return dtypes.of_numpy(dtype.newbyteorder("=")).name


def key_of(x: Any) -> tuple[Any, ...] | None:
    """A key that is the same as long as the tensor's memory, type and shape are. None if the tensor
    has to be looked at."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        plain = type(x) in (torch.Tensor, torch.nn.Parameter)
        if not plain or not x.is_cpu or x.layout != torch.strided:
            return None
        return (x.data_ptr(), tuple(x.shape), x.stride(), x.dtype)
    if type(x) is numpy.ndarray:
        return (x.__array_interface__["data"][0], x.shape, x.strides, x.dtype)
    return None


def bytes_of(x: Any) -> numpy.ndarray:
    """The bytes of a tensor in row-major order: its own memory, or a copy if it is not contiguous.
    The program must not write to the tensor as long as they are used."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        x = x.detach().resolve_conj().resolve_neg().contiguous()
        return x.reshape(-1).view(torch.uint8).numpy()  # type: ignore[no-any-return]
    array = _as_array(x)
    array = numpy.ascontiguousarray(array, array.dtype.newbyteorder("="))
    return array.reshape(-1).view(numpy.uint8)


def locate(x: Any) -> Place:
    """Which slice an object stands for: all of it, or a DTensor's shard. Raises InvalidArgument for
    a DTensor that is a partial sum."""
    if not is_dtensor(x):
        shape = facts(x).shape
        return Place(x, shape, whole(shape))
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    if any(placement.is_partial() for placement in x.placements):
        raise InvalidArgument(
            "a DTensor with a Partial placement has no values yet: redistribute it first"
        )
    local, offset = compute_local_shape_and_global_offset(x.shape, x.device_mesh, x.placements)
    return Place(x.to_local(), tuple(x.shape), Slice(tuple(offset), tuple(local)))


def is_dtensor(x: Any) -> bool:
    """Whether it is a DTensor of torch."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(x, module.DTensor)


def new_array(dtype: str, shape: Shape) -> numpy.ndarray:
    """A new NumPy array. Raises InvalidArgument if NumPy lacks the type."""
    return numpy.empty(shape, numpy_dtype(dtype))


class Target:
    """Where the bytes of a tensor go: ``data`` are contiguous bytes to write into. :meth:`finish`
    brings them to the tensor if they are not its own memory."""

    def __init__(self, out: Any, dtype: str, shape: Shape) -> None:
        found = facts(out)
        if found.dtype != dtype or found.shape != shape:
            raise InvalidArgument(
                f"out is {found.dtype} {list(found.shape)}, and the tensor is {dtype} {list(shape)}"
            )
        self.out = out
        self.data, self._finish = _writable(out)

    @classmethod
    def of_bytes(cls, data: numpy.ndarray) -> Target:
        """Bytes whose type and size the caller has checked."""
        target = cls.__new__(cls)
        target.out = target.data = data
        target._finish = None
        return target

    def finish(self) -> None:
        """Brings the bytes to the tensor, if they are not there yet."""
        if self._finish is not None:
            self._finish()


def flatten(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested dictionaries and lists, with names such as "a.b.0". Raises
    InvalidArgument for a name that two leaves would have."""
    seen: set[str] = set()
    for name, leaf in _leaves(tree, ""):
        if name in seen:
            raise InvalidArgument(f"two tensors of the state dict would be named {name!r}")
        seen.add(name)
        yield prefix + name, leaf


def is_number(x: Any) -> bool:
    """Whether it is a plain number, which has no memory to write into."""
    return isinstance(x, (bool, int, float, complex)) and not isinstance(x, numpy.generic)


def set_leaf(tree: Any, name: str, value: Any) -> None:
    """Replaces the leaf that :func:`flatten` names so."""
    for key, child in _items(tree):
        if name == key:
            tree[_key(tree, key)] = value
            return
        if name.startswith(key + ".") and isinstance(child, (Mapping, list, tuple)):
            rest = name[len(key) + 1 :]
            if any(leaf == rest for leaf, _ in _leaves(child, "")):
                set_leaf(child, rest, value)
                return


def _leaves(tree: Any, path: str) -> Iterator[tuple[str, Any]]:
    for key, child in _items(tree):
        name = f"{path}.{key}" if path else key
        if isinstance(child, (Mapping, list, tuple)):
            yield from _leaves(child, name)
        else:
            yield name, child


def _items(tree: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(tree, Mapping):
        yield from ((str(key), child) for key, child in tree.items())
    elif isinstance(tree, (list, tuple)):
        yield from ((str(index), child) for index, child in enumerate(tree))
    else:
        raise InvalidArgument(f"a state dict is a dictionary, not {type(tree).__name__}")


def _key(tree: Any, key: str) -> Any:
    if isinstance(tree, (list, tuple)):
        return int(key)
    return next(each for each in tree if str(each) == key)


def _check_torch(x: Any, torch: Any) -> None:
    if is_dtensor(x):
        raise InvalidArgument("a DTensor is put or read by its own shards: pass no offset or shape")
    if x.device.type != "cpu":
        raise InvalidArgument(f"the tensor is on {x.device}: copy it to host memory first")
    if x.layout != torch.strided or x.is_quantized:
        raise InvalidArgument("a store keeps neither sparse nor quantized tensors")


def _as_array(x: Any) -> numpy.ndarray:
    if isinstance(x, numpy.ndarray):
        return x
    if isinstance(x, (str, bytes)) or x is None:
        raise InvalidArgument(f"{type(x).__name__} is no tensor")
    try:
        if not hasattr(x, "__array__") and hasattr(x, "__dlpack__"):
            return numpy.from_dlpack(x)
        return numpy.asarray(x)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidArgument(f"{type(x).__name__} is no tensor: {error}") from None


def _writable(out: Any) -> tuple[numpy.ndarray, Callable[[], object] | None]:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(out, torch.Tensor):
        return _writable_torch(out, torch)
    if hasattr(out, "assign") and not isinstance(out, numpy.ndarray):  # a variable of TensorFlow
        array = numpy.empty(tuple(out.shape), numpy_dtype(facts(out).dtype))
        return array.reshape(-1).view(numpy.uint8), lambda: out.assign(array)
    array = out if isinstance(out, numpy.ndarray) else numpy.asarray(out)
    if not array.flags.writeable or not (array is out or numpy.may_share_memory(array, out)):
        raise InvalidArgument("out cannot be written to")
    if array.flags.c_contiguous and array.dtype.isnative:
        return array.reshape(-1).view(numpy.uint8), None
    fresh = numpy.empty(array.shape, array.dtype.newbyteorder("="))
    return fresh.reshape(-1).view(numpy.uint8), lambda: numpy.copyto(array, fresh)


def _writable_torch(out: Any, torch: Any) -> tuple[numpy.ndarray, Callable[[], object] | None]:
    own = out.detach()
    if own.is_contiguous() and not own.is_conj() and not own.is_neg():
        return own.reshape(-1).view(torch.uint8).numpy(), None
    fresh = torch.empty(own.shape, dtype=own.dtype)
    return fresh.reshape(-1).view(torch.uint8).numpy(), lambda: own.copy_(fresh)


def make_like(out_kind: Any, dtype: str, shape: Sequence[int]) -> Any:
    """A new tensor of the library of ``out_kind``: torch for a torch tensor, else NumPy."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(out_kind, torch.Tensor):
        return torch.empty(tuple(shape), dtype=getattr(torch, dtype))
    return new_array(dtype, tuple(shape))
