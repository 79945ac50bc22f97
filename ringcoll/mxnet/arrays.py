"""Arrays of MXNet as those of NumPy, without a copy where they lie in the memory of the host."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import numpy
from mxnet import autograd, ndarray
from mxnet.ndarray import NDArray
from mxnet.ndarray.sparse import BaseSparseNDArray, RowSparseNDArray

from ringcoll.mxnet.errors import InvalidArgument

Array = numpy.ndarray[Any, numpy.dtype[Any]]
_CPU = 1  # the number of DLPack for memory of the host
_HOST = (1, 3, 5)  # those of MXNet: cpu, cpu_pinned, cpu_shared


class _Exported:
    """What ``numpy.from_dlpack`` takes, of a capsule."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, stream: Any = None) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU, 0


def is_sparse(array: NDArray) -> bool:
    """Whether it has some rows only. Raises InvalidArgument for another kind of sparse arrays."""
    if isinstance(array, BaseSparseNDArray) and not isinstance(array, RowSparseNDArray):
        raise InvalidArgument(f"arrays are dense or row_sparse, not {array.stype}: use tostype()")
    return isinstance(array, RowSparseNDArray)


def _is_of_host(array: NDArray) -> bool:
    return array.context.device_typeid in _HOST


def read_view(array: NDArray) -> Array:
    """Waits until a dense array is computed, and returns its values, to be read only."""
    if not _is_of_host(array):
        return numpy.asarray(array.asnumpy())
    return numpy.from_dlpack(_Exported(array.to_dlpack_for_read()))


def write_view(array: NDArray) -> Array | None:
    """Waits until nothing uses a dense array, and returns its memory. None if it is elsewhere."""
    if not _is_of_host(array):
        return None
    view = numpy.from_dlpack(_Exported(array.to_dlpack_for_write()))
    # NumPy takes DLPack's memory for read-only, though MXNet has waited for all that uses it.
    memory = _buffer_type(view.nbytes).from_address(view.ctypes.data)
    memory.owner = view
    return numpy.ndarray(view.shape, view.dtype, memory)


@functools.lru_cache(maxsize=4096)  # ctypes takes longer to make a type than an object
def _buffer_type(size: int) -> Any:
    return ctypes.c_char * size


def rows_of(array: RowSparseNDArray) -> tuple[Array, Array]:
    """The ids of the rows that are there, ascending, and their values."""
    ids = numpy.asarray(array.indices.asnumpy(), numpy.int64)
    if not len(ids):
        return ids, numpy.zeros((0, *array.shape[1:]), array.dtype)
    return ids, numpy.asarray(array.data.asnumpy())


def set_values(out: NDArray, values: Array) -> None:
    """Gives a dense array these values."""
    with autograd.pause():  # a program may pull while it records, and this is no step of its graph
        out[:] = values


def set_rows(out: RowSparseNDArray, ids: Array, values: Array) -> None:
    """Gives ``out`` these rows and no others. The ids ascend."""
    kind = {"shape": out.shape, "ctx": out.context, "dtype": out.dtype}
    with autograd.pause():
        if len(ids):
            found = ndarray.sparse.row_sparse_array((values, ids), **kind)
        else:
            found = ndarray.sparse.zeros("row_sparse", **kind)
        found.copyto(out)


def merged(arrays: Sequence[NDArray]) -> NDArray:
    """The sum of the arrays of several devices."""
    first = arrays[0]
    if len(arrays) == 1:
        return first
    if any(each.shape != first.shape or each.dtype != first.dtype for each in arrays):
        kinds = ", ".join(f"{list(each.shape)} {each.dtype.__name__}" for each in arrays)
        raise InvalidArgument(f"the arrays of one key are summed, and these differ: {kinds}")
    if any(is_sparse(each) != is_sparse(first) for each in arrays):
        arrays = [each.tostype("default") for each in arrays]
    with autograd.pause():
        return ndarray.add_n(*[each.as_in_context(first.context) for each in arrays])
