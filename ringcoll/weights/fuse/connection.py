"""mfusepy, and what it passes on of libfuse's calls."""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringcoll.errors import Error

if TYPE_CHECKING:
    from ringcoll.weights.fuse.filesystem import FileSystem

try:
    os.environ.setdefault("FUSE_LIBRARY_NAME", "fuse3")  # mfusepy prefers libfuse 2
    import mfusepy
except (ImportError, OSError, AttributeError) as _error:
    raise Error(
        f"mounting needs mfusepy and libfuse 3 ({_error}): pip install 'ringcoll[store]', and "
        "install the system's packages libfuse3-3 and fuse3"
    ) from _error

log = logging.getLogger("ringcoll.mount")

# Which mount it is, in /proc/self/mountinfo.
NAME = "ringcoll"
TYPE = f"fuse.{NAME}"
# libfuse 3.12 and newer limits the threads. An older one starts another one if all are busy.
_HAS_MAX_THREADS = (3, 12)
# FUSE_CAP_* of libfuse's fuse_common.h, both switched off. Without the first, data that are written
# come in memory. The second is needless: files change through this mount alone.
_SPLICE_READ, _AUTO_INVAL_DATA = 1 << 9, 1 << 12
# How many requests of readahead the kernel may have under way at a time.
_BACKGROUND = 64
_STEP_S = 0.1


class Server:
    """Serves a mount in threads of libfuse, from start() until it is unmounted."""

    def __init__(self, point: Path, system: FileSystem, *, allow_other: bool, threads: int) -> None:
        self._point = point
        self._system = system
        self._options = _options(allow_other, threads)
        self._ended = threading.Event()

    def start(self, timeout: float) -> None:
        """Mounts. Raises Error if it cannot, or if the kernel does not speak to libfuse."""
        # libfuse and mfusepy replace handlers of signals only if the main thread calls them. The
        # thread is a daemon: this process may end while a file is open.
        threading.Thread(target=self._serve, name="fuse", daemon=True).start()
        for _ in range(int(timeout / _STEP_S)):
            if self._system.is_ready.wait(_STEP_S) or self._ended.is_set():
                break
        if not self._system.is_ready.is_set():
            raise Error(f"{self._point}: cannot be mounted, for the reason that libfuse has said")
        self._point.stat()  # returns when libfuse's part in the start is done

    def wait(self, timeout: float) -> bool:
        """Waits until the file system is unmounted and not in use. False: it is not yet."""
        return self._ended.wait(timeout)

    def _serve(self) -> None:
        try:
            _Calls(self._system, str(self._point), raw_fi=True, foreground=True, **self._options)
        except RuntimeError as error:  # the exit status of libfuse, which has said why
            log.error("libfuse ended with status %s", error)
        finally:
            self._ended.set()


def _options(allow_other: bool, threads: int) -> dict[str, Any]:
    options: dict[str, Any] = {
        "fsname": NAME,
        "subtype": NAME,
        "allow_other": allow_other,
        "default_permissions": True,
        "max_idle_threads": threads,
    }
    if (mfusepy.fuse_version_major, mfusepy.fuse_version_minor) >= _HAS_MAX_THREADS:
        options["max_threads"] = threads
    return options


class _Calls(mfusepy.FUSE):  # type: ignore[misc]
    """mfusepy's calls, with what it leaves out: flags of a rename, the open file of a change, and
    memory of libfuse that is read into and written from without a copy."""

    def init_fuse_3(self, connection: Any, config: Any) -> None:
        kernel, settings = connection.contents, config.contents
        kernel.want &= ~(_SPLICE_READ | _AUTO_INVAL_DATA)
        kernel.max_background, kernel.congestion_threshold = _BACKGROUND, _BACKGROUND * 3 // 4
        settings.use_ino = 1
        # libfuse does not say the path of an open file, whose number suffices.
        settings.nullpath_ok = 1
        # A commit moves a name to the root, where the store takes it away, and versions come and
        # go. So the kernel asks each time whether a name is still there.
        settings.entry_timeout = settings.negative_timeout = 0
        settings.attr_timeout = 1
        self.operations.init("/")

    def rename_fuse_3(self, old: bytes, new: bytes, flags: int) -> int:
        self.operations.rename(os.fsdecode(old), os.fsdecode(new), flags)
        return 0

    def chmod_fuse_3(self, path: bytes | None, mode: int, file: Any) -> int:
        self.operations.chmod(_text(path), mode, _number(file))
        return 0

    def chown_fuse_3(self, path: bytes | None, uid: int, gid: int, file: Any) -> int:
        self.operations.chown(_text(path), _signed(uid), _signed(gid), _number(file))
        return 0

    def truncate_fuse_3(self, path: bytes | None, size: int, file: Any) -> int:
        self.operations.truncate(_text(path), size, _number(file))
        return 0

    def utimens_fuse_3(self, path: bytes | None, times: Any, file: Any) -> int:
        found = times.contents
        pairs = [(time.tv_sec, time.tv_nsec) for time in (found.actime, found.modtime)]
        self.operations.utimens(_text(path), pairs[0], pairs[1], _number(file))
        return 0

    def read(self, path: bytes | None, data: Any, size: int, offset: int, file: Any) -> int:
        found: int = self.operations.read(_number(file), offset, _memory(data, size))
        return found

    def write(self, path: bytes | None, data: Any, size: int, offset: int, file: Any) -> int:
        written: int = self.operations.write(_number(file), offset, _memory(data, size))
        return written


def asker() -> tuple[int, int]:
    """The user and group of who has asked for the operation that runs in this thread."""
    uid, gid, _ = mfusepy.fuse_get_context()
    return uid, gid


def _text(path: bytes | None) -> str:
    return "" if path is None else os.fsdecode(path)


def _number(file: Any) -> int:
    """The number of an open file; 0 if there is none."""
    return file.contents.fh if file else 0


def _signed(number: int) -> int:
    """A user or a group, or -1: it does not change."""
    return -1 if number == 0xFFFFFFFF else number


def _memory(data: Any, size: int) -> memoryview:
    """Memory of libfuse, which is valid until the call returns."""
    array = (ctypes.c_char * size).from_address(ctypes.addressof(data.contents))
    return memoryview(array).cast("B")
