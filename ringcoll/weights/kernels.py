"""Checksums and deltas of tensors, by the library's SIMD kernels.

Until the extension module has them, slow functions of NumPy stand in. All processes of a store must
have the same ones.
"""

from __future__ import annotations

import hashlib
from typing import Any, cast

import numpy

from ringcoll import _core

_HAS_KERNELS = hasattr(_core, "copy_checksum")


def checksum(data: numpy.ndarray) -> int:
    """The checksum of the bytes of a contiguous array. Other threads run meanwhile."""
    if _HAS_KERNELS:
        return cast(int, _core.checksum(data))
    return _slow_checksum(data)


def copy_checksum(out: numpy.ndarray, data: numpy.ndarray) -> int:
    """Copies ``data`` to ``out``, both contiguous and of one type and size, and returns the
    checksum. Other threads run meanwhile."""
    if _HAS_KERNELS:
        return cast(int, _core.copy_checksum(out, data))
    numpy.copyto(out, data)
    return _slow_checksum(out)


def delta_make(before: numpy.ndarray, now: numpy.ndarray, out: numpy.ndarray) -> int | None:
    """Writes to ``out`` (bytes) what has to change in ``before`` to make ``now`` of it. Returns the
    length, or None if that does not fit."""
    if _HAS_KERNELS:
        return cast("int | None", _core.delta_make(before, now, out))
    changed = numpy.flatnonzero(before != now)
    parts = (changed.astype("<u8").tobytes(), now[changed].tobytes())
    delta = len(changed).to_bytes(8, "little") + b"".join(parts)
    if len(delta) > out.nbytes:
        return None
    out[: len(delta)] = numpy.frombuffer(delta, numpy.uint8)
    return len(delta)


def delta_apply(data: numpy.ndarray, delta: numpy.ndarray) -> None:
    """Changes ``data`` in place as the delta says. Raises InvalidArgument if it is malformed."""
    if _HAS_KERNELS:
        _core.delta_apply(data, delta)
        return
    count = int.from_bytes(delta[:8].tobytes(), "little")
    places = delta[8 : 8 + 8 * count].view("<u8").astype(numpy.int64)
    data[places] = delta[8 + 8 * count :].view(data.dtype)


def _slow_checksum(data: Any) -> int:
    digest = hashlib.blake2b(data.reshape(-1).view(numpy.uint8), digest_size=8)
    return int.from_bytes(digest.digest(), "little")
