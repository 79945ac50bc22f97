"""The element types that a store keeps: their names, sizes, and names in safetensors.

The bytes of elements are never interpreted, so types that NumPy lacks are kept as well.
"""

from __future__ import annotations

from typing import Any

import numpy

from ringcoll.errors import InvalidArgument

# name -> (bytes of one element, name in safetensors or None)
_TYPES: dict[str, tuple[int, str | None]] = {
    "bool": (1, "BOOL"),
    "uint8": (1, "U8"),
    "int8": (1, "I8"),
    "uint16": (2, "U16"),
    "int16": (2, "I16"),
    "uint32": (4, "U32"),
    "int32": (4, "I32"),
    "uint64": (8, "U64"),
    "int64": (8, "I64"),
    "float16": (2, "F16"),
    "bfloat16": (2, "BF16"),
    "float32": (4, "F32"),
    "float64": (8, "F64"),
    "complex32": (4, None),
    "complex64": (8, "C64"),
    "complex128": (16, None),
    "float8_e4m3fn": (1, "F8_E4M3"),
    "float8_e5m2": (1, "F8_E5M2"),
    "float8_e8m0fnu": (1, "F8_E8M0"),
    "float8_e4m3fnuz": (1, None),
    "float8_e5m2fnuz": (1, None),
    "float8_e4m3": (1, None),
    "float8_e3m4": (1, None),
    "float8_e4m3b11fnuz": (1, None),
    "float4_e2m1fn_x2": (1, None),
}
_BY_SAFETENSORS = {stored: name for name, (_, stored) in _TYPES.items() if stored}


def itemsize(dtype: str) -> int:
    """The bytes of one element. Raises InvalidArgument for an unknown type."""
    if dtype not in _TYPES:
        raise InvalidArgument(f"a store keeps no tensors of type {dtype}")
    return _TYPES[dtype][0]


def is_known(dtype: str) -> bool:
    """Whether a store keeps tensors of this type."""
    return dtype in _TYPES


def safetensors_name(dtype: str) -> str | None:
    """The name of the type in a safetensors file, or None if that format lacks it."""
    return _TYPES[dtype][1]


def from_safetensors(stored: str) -> str:
    """The type of a name in a safetensors file. Raises InvalidArgument for an unknown one."""
    if stored not in _BY_SAFETENSORS:
        raise InvalidArgument(f"safetensors: the type {stored} is unknown")
    return _BY_SAFETENSORS[stored]


def numpy_dtype(dtype: str) -> numpy.dtype[Any]:
    """NumPy's type of this name. Raises InvalidArgument if NumPy lacks it and ml_dtypes does not
    provide it either."""
    try:
        return numpy.dtype(dtype)
    except TypeError:
        pass
    try:
        import ml_dtypes

        return numpy.dtype(getattr(ml_dtypes, dtype))
    except (ImportError, AttributeError, TypeError):
        raise InvalidArgument(
            f"NumPy has no type {dtype}: pass out=, such as a torch tensor, or install ml_dtypes"
        ) from None


def word_dtype(dtype: str) -> numpy.dtype[Any]:
    """The unsigned integer as which elements of this type are compared."""
    return numpy.dtype(f"u{min(itemsize(dtype), 8)}")
