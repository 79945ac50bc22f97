"""renameat2(2), which Python does not have."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

NOREPLACE = 1
_HERE = -100  # AT_FDCWD

_libc = ctypes.CDLL(None, use_errno=True)


def rename(old: Path, new: Path, flags: int) -> None:
    """Renames with flags. Raises OSError."""
    if _libc.renameat2(_HERE, os.fsencode(old), _HERE, os.fsencode(new), flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
