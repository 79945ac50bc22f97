"""Mounting and unmounting: by mount(2) as root, else by the set-user-ID program fusermount3."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import shutil
import socket
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path

from ringcoll.errors import Error, InvalidArgument

_DEVICE = Path("/dev/fuse")
_TYPE = "fuse.ringcoll"
_SOURCE = "ringcoll"
_NOSUID, _NODEV, _DETACH = 2, 4, 2  # MS_NOSUID, MS_NODEV, MNT_DETACH
_FUSERMOUNT = "fusermount3"
_FUSERMOUNT_LIMIT_S = 20
# Longer than the server's own limit for a store that is lost.
_ANSWER_S = 8.0

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class _Mount:
    """A line of /proc/self/mountinfo."""

    device: str  # "major:minor"
    point: Path
    type: str


def mount(point: Path, allow_other: bool) -> int:
    """Mounts the file system at a path that prepare() has returned, and returns the descriptor of
    its connection to the kernel. ``allow_other`` lets other users read. Raises Error."""
    if not _DEVICE.exists():
        raise Error(f"{_DEVICE} is missing: load the module fuse, or pass it to the container")
    options = ["default_permissions"] + ["allow_other"] * allow_other
    if os.geteuid() != 0:
        return _mount_by_helper(point, options)
    descriptor = os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC)
    options += [f"fd={descriptor}", "rootmode=40000", "user_id=0", "group_id=0"]
    data = ",".join(options).encode()
    flags = _NOSUID | _NODEV
    if _libc.mount(_SOURCE.encode(), os.fsencode(point), _TYPE.encode(), flags, data) != 0:
        number = ctypes.get_errno()
        os.close(descriptor)
        raise Error(f"{point}: cannot be mounted: {os.strerror(number)}")
    return descriptor


def unmount(point: Path, lazy: bool) -> bool:
    """Unmounts. ``lazy`` also takes away a mount that is in use: it ends when its last file is
    closed. Returns whether it is gone."""
    if os.geteuid() == 0:
        return bool(_libc.umount2(os.fsencode(point), _DETACH if lazy else 0) == 0)
    command = [_FUSERMOUNT, "-q", "-u", *(["-z"] if lazy else []), "--", str(point)]
    with contextlib.suppress(FileNotFoundError, subprocess.TimeoutExpired):
        done = subprocess.run(command, check=False, timeout=_FUSERMOUNT_LIMIT_S)
        return done.returncode == 0
    return False


def is_mounted(point: Path) -> bool:
    """Whether a file system of this kind is mounted there. Does not ask its server."""
    return (found := _mount_at(point)) is not None and found.type == _TYPE


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


def _mount_by_helper(point: Path, options: list[str]) -> int:
    """fusermount3 mounts, and sends the descriptor through a socket."""
    if shutil.which(_FUSERMOUNT) is None:
        raise Error(f"only root can mount without {_FUSERMOUNT}: install the package fuse3")
    options = [*options, f"fsname={_SOURCE}", f"subtype={_TYPE.partition('.')[2]}"]
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [_FUSERMOUNT, "-o", ",".join(options), "--", str(point)]
        done = subprocess.run(
            command,
            env=os.environ | {"_FUSE_COMMFD": str(theirs.fileno())},
            pass_fds=[theirs.fileno()],
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=_FUSERMOUNT_LIMIT_S,
        )
        if done.returncode != 0:
            raise Error(f"{point}: cannot be mounted: {done.stderr.strip()}")
        _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
    os.set_inheritable(descriptors[0], False)
    return descriptors[0]
