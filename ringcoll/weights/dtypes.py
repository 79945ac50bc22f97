"""Element types: the names that manifests use, and what .npy and safetensors call them.

A manifest uses NumPy's name for a type that NumPy has ("float32", "complex128", "<U5"), and torch's
name for a type that NumPy lacks ("bfloat16", "float8_e4m3fn").

A .npy file cannot name the types that NumPy lacks. Such a file says that its elements are unsigned
integers of the same width. A reader gets the values back with ``array.view(ml_dtypes.bfloat16)`` or
``torch.from_numpy(array).view(torch.bfloat16)``. torch accepts integers, but not the opaque type
"V2" that NumPy writes for ml_dtypes.

A safetensors file says the true type. It cannot name every type of NumPy either: a tensor of
another type is stored as bytes (U8), with one more axis, and the metadata of the file say which
type it has.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ringcoll.errors import InvalidArgument


@dataclass(frozen=True)
class DType:
    """One element type. ``numpy`` is the type of the elements in a .npy file. ``code`` is the name
    in a safetensors file, or "" if safetensors has none."""

    name: str
    size: int
    numpy: np.dtype
    code: str = ""


# Types that NumPy lacks: size in bytes, and the name in safetensors.
_FOREIGN = {
    "bfloat16": (2, "BF16"),
    "float8_e4m3fn": (1, "F8_E4M3"),
    "float8_e4m3fnuz": (1, "F8_E4M3FNUZ"),
    "float8_e5m2": (1, "F8_E5M2"),
    "float8_e5m2fnuz": (1, "F8_E5M2FNUZ"),
    "float8_e8m0fnu": (1, "F8_E8M0"),
    "float8_e4m3": (1, ""),
    "float8_e3m4": (1, ""),
    "float8_e4m3b11fnuz": (1, ""),
    "float6_e2m3fn": (1, ""),
    "float6_e3m2fn": (1, ""),
    "float4_e2m1fn": (1, ""),
    "float4_e2m1fn_x2": (1, ""),
    "int2": (1, ""),
    "uint2": (1, ""),
    "int4": (1, ""),
    "uint4": (1, ""),
    "complex32": (4, ""),
}
_CODES = {
    "bool": "BOOL",
    "int8": "I8",
    "uint8": "U8",
    "int16": "I16",
    "uint16": "U16",
    "int32": "I32",
    "uint32": "U32",
    "int64": "I64",
    "uint64": "U64",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
}
_BY_CODE = {code: name for name, code in _CODES.items()} | {
    code: name for name, (_, code) in _FOREIGN.items() if code
}


def find(name: str) -> DType:
    """The type with this name. Raises InvalidArgument if there is none, or if its elements are
    Python objects."""
    if name in _FOREIGN:
        size, code = _FOREIGN[name]
        return DType(name, size, np.dtype(f"<u{size}"), code)
    try:
        dtype = np.dtype(name)
    except (TypeError, ValueError, SyntaxError):
        raise InvalidArgument(f"dtype {name!r} is unknown") from None
    return _of_numpy(dtype)


def of_numpy(dtype: np.dtype) -> DType:
    """The type of a NumPy array. ml_dtypes' types are known by their names. Raises InvalidArgument
    if the elements are Python objects."""
    return find(dtype.name) if dtype.name in _FOREIGN else _of_numpy(dtype)


def of_code(code: object) -> DType | None:
    """The type with this name in safetensors, or None."""
    return find(_BY_CODE[code]) if isinstance(code, str) and code in _BY_CODE else None


def _of_numpy(dtype: np.dtype) -> DType:
    if dtype.hasobject:
        raise InvalidArgument(f"dtype {dtype} holds Python objects, which have no bytes to store")
    if dtype.fields is not None or dtype.subdtype is not None:
        raise InvalidArgument(f"dtype {dtype} has fields: store each field as a tensor")
    if dtype.itemsize == 0:
        raise InvalidArgument(f"dtype {dtype} has elements of no bytes")
    name = dtype.name if dtype.isnative and dtype.kind not in "SUV" else dtype.str
    return DType(name, dtype.itemsize, dtype, _CODES.get(name, ""))
