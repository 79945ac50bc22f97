"""Axes of tensors of any library, and new tensors like a given one, for the collectives.

This module does not import torch. There can be torch tensors only if the program has imported
torch.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from typing import Any

from ringcoll import _core
from ringcoll.errors import InvalidArgument

Shape = tuple[int, ...]


def shape_of(x: Any) -> Shape:
    """The lengths of the axes. Raises InvalidArgument if ``x`` is no tensor."""
    shape: Iterable[int] = x.shape if hasattr(x, "shape") else _view(x).shape or ()
    return tuple(int(length) for length in shape)


def rows_of(x: Any) -> tuple[int, Shape]:
    """The length of the first axis, and the shape of one row. A scalar is one row."""
    shape = shape_of(x)
    return (shape[0], shape[1:]) if shape else (1, ())


def width_of(row: Shape) -> int:
    """The number of elements of one row."""
    return math.prod(row)


def make_like(x: Any, shape: Shape | None = None) -> Any:
    """A new tensor with the element type of ``x`` and uninitialized memory: a torch tensor if ``x``
    is one, else a NumPy array. ``shape`` is by default that of ``x``."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(x, (numpy.ndarray, numpy.generic)):
        return numpy.empty(x.shape if shape is None else shape, x.dtype)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return torch.empty(x.shape if shape is None else shape, dtype=x.dtype, device=x.device)
    if shape is None:
        shape = shape_of(x)
    return _array(_core.dtype_of(x), shape)


def _array(dtype: str, shape: Shape) -> Any:
    import numpy

    if dtype == "bfloat16":
        try:
            import ml_dtypes
        except ImportError:
            raise InvalidArgument(
                "NumPy has no bfloat16 for the output: pass out=, or install ml_dtypes"
            ) from None
        return numpy.empty(shape, ml_dtypes.bfloat16)
    return numpy.empty(shape, dtype)


def _view(x: Any) -> memoryview:
    try:
        return memoryview(x)
    except TypeError:
        raise InvalidArgument(
            f"{type(x).__name__} is no tensor: pass anything with the buffer protocol or DLPack, "
            "such as a NumPy array or a torch tensor"
        ) from None
