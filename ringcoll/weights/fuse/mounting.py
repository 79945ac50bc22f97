"""Where can be mounted, repair of mounts whose server was killed, and unmounting."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path

from ringcoll.errors import Error, InvalidArgument
from ringcoll.weights.fuse.connection import TYPE

_DEVICE = Path("/dev/fuse")
_FUSERMOUNT = "fusermount3"
_FUSERMOUNT_LIMIT_S = 20
# Longer than the server's own limit for a store that is lost.
_ANSWER_S = 8.0


@dataclass(frozen=True)
class _Mount:
    """A line of /proc/self/mountinfo."""

    device: str  # "major:minor"
    point: Path
    type: str


def check() -> None:
    """Raises Error if this system cannot mount."""
    if not _DEVICE.exists():
        raise Error(f"{_DEVICE} is missing: load the module fuse, or pass it to the container")
    if shutil.which(_FUSERMOUNT) is None:
        raise Error(f"{_FUSERMOUNT} is missing: install the system's package fuse3")


def unmount(point: Path, lazy: bool) -> bool:
    """Unmounts. ``lazy`` also takes away a mount that is in use: it ends when its last file is
    closed. Returns whether it is gone."""
    command = [_FUSERMOUNT, "-q", "-u", *(["-z"] if lazy else []), "--", str(point)]
    with contextlib.suppress(FileNotFoundError, subprocess.TimeoutExpired):
        done = subprocess.run(command, check=False, timeout=_FUSERMOUNT_LIMIT_S)
        return done.returncode == 0
    return False


def is_mounted(point: Path) -> bool:
    """Whether a file system of this kind is mounted there. Does not ask its server."""
    return (found := _mount_at(point)) is not None and found.type == TYPE


def prepare(point: Path) -> Path:
    """The absolute path of an empty directory to mount at. A mount there whose server was killed is
    taken away. Raises InvalidArgument if the directory is not there, not empty, or in use by
    another mount."""
    point = Path(os.path.realpath(point))
    if is_mounted(point):
        _repair(point)
    try:
        is_empty = not any(point.iterdir())
    except OSError as error:
        raise InvalidArgument(f"{point}: {error.strerror}") from None
    if not is_empty:
        raise InvalidArgument(f"{point} is not empty: choose an empty directory")
    return point


def _repair(point: Path) -> None:
    answer = _ask(point)
    if answer is None:
        raise InvalidArgument(f"{point} is mounted already, and its server answers")
    if answer not in (errno.ENOTCONN, errno.ECONNABORTED):
        raise InvalidArgument(f"{point} is mounted already: {os.strerror(answer)}")
    if not unmount(point, lazy=True):
        raise Error(f"{point} is a mount whose server has ended, and cannot be unmounted")


def _ask(point: Path) -> int | None:
    """The error of a request that the kernel does not answer itself. A server that is stopped
    answers nothing, so that this thread must not wait for it."""
    errors: list[int | None] = [errno.ETIMEDOUT]

    def ask() -> None:
        try:
            os.statvfs(point)
            errors.append(None)
        except OSError as error:
            errors.append(error.errno)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_ANSWER_S)
    return errors[-1]


def _mount_at(point: Path) -> _Mount | None:
    """The topmost mount at this path."""
    found = None
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        fields = line.split(" ")
        name = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
        if name == str(point):
            found = _Mount(fields[2], point, fields[fields.index("-") + 1])
    return found


def set_readahead(point: Path, readahead_bytes: int) -> None:
    """Lets the kernel read so far ahead: by default 128 KiB. Only root can change that. To be
    called when the kernel and the server have agreed on how they speak, which sets the default."""
    if (found := _mount_at(point)) is not None:
        with contextlib.suppress(OSError):  # sysfs may be read-only in a container
            knob = Path(f"/sys/class/bdi/{found.device}/read_ahead_kb")
            knob.write_text(str(readahead_bytes >> 10))
