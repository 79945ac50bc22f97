"""renameat2(2), which Python does not have."""

from __future__ import annotations

import ctypes
import os

NOREPLACE = 1

_libc = ctypes.CDLL(None, use_errno=True)


def rename(old_folder: int, old: str, new_folder: int, new: str, flags: int) -> None:
    """Renames between open directories. Raises OSError."""
    names = os.fsencode(old), os.fsencode(new)
    if _libc.renameat2(old_folder, names[0], new_folder, names[1], flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
