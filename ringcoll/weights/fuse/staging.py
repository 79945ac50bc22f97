"""The directory ``/staging``: an ordinary directory, whose content a rename can commit.

Its files lie in a real directory, the spool, so that they behave as files do. libfuse asks by
paths. So fstat(2) is an error for a file that is open after its directory was removed or committed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ringcoll.weights.fuse import renaming
from ringcoll.weights.fuse.nodes import Entry, Handle, Node, Stat, refused

_OPEN = os.O_CLOEXEC
_ACCESS = os.O_RDONLY | os.O_WRONLY | os.O_RDWR | os.O_TRUNC
_PERMISSIONS = 0o1777  # never set-user-ID
_XATTR_BYTES = 1 << 16
_UTIME_NOW, _UTIME_OMIT = (1 << 30) - 1, (1 << 30) - 2
_FIELDS = ("st_ino", "st_mode", "st_size", "st_nlink", "st_uid", "st_gid", "st_blocks")

Key = tuple[int, int]
Time = tuple[int, int]  # seconds and nanoseconds, as utimensat(2) has them


class Owner(NamedTuple):
    """A user and a group."""

    uid: int
    gid: int


class Staging:
    """What all of the staging area shares: its real directory, extended attributes, which not every
    file system can hold, and the seals of what is being committed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Descriptors of files that were removed while they were open, by their names in libfuse.
        self.hidden: dict[str, int] = {}
        self._open: Counter[Key] = Counter()
        self._xattrs: dict[Key, dict[str, bytes]] = {}
        self._sealed: set[Key] = set()
        self._writers = 0
        self._changed = threading.Condition()

    def xattrs(self, key: Key) -> dict[str, bytes]:
        return self._xattrs.get(key, {})

    def set_xattr(self, key: Key, name: str, value: bytes) -> None:
        with self._changed:
            mine = self._xattrs.setdefault(key, {})
            mine[name] = value
            if sum(map(len, [*mine, *mine.values()])) > _XATTR_BYTES:
                del mine[name]
                raise refused(errno.ENOSPC)

    def remove_xattr(self, key: Key, name: str) -> None:
        with self._changed:
            if self._xattrs.get(key, {}).pop(name, None) is None:
                raise refused(errno.ENODATA)

    def drop(self, key: Key) -> None:
        """The file is removed."""
        self._xattrs.pop(key, None)

    def opened(self, key: Key) -> None:
        with self._changed:
            self._open[key] += 1

    def hide(self, name: str, descriptor: int) -> None:
        """A file was removed, and is called ``name`` until it is closed. Takes the descriptor."""
        with self._changed:
            if key_of(os.fstat(descriptor)) in self._open:
                self.hidden[name] = descriptor
            else:  # it was closed meanwhile
                os.close(descriptor)

    def closed(self, key: Key) -> None:
        """One less has the file open. After the last one, a hidden file is gone."""
        with self._changed:
            self._open[key] -= 1
            if self._open[key]:
                return
            del self._open[key]
            for name, descriptor in list(self.hidden.items()):
                if key_of(os.fstat(descriptor)) == key:
                    os.close(self.hidden.pop(name))
                    self.drop(key)

    @contextlib.contextmanager
    def changing(self, *keys: Key) -> Iterator[None]:
        """For the time of a change to these files or directories. Raises EBUSY if one is being
        committed."""
        with self._changed:
            if not self._sealed.isdisjoint(keys):
                raise refused(errno.EBUSY)
            self._writers += 1
        try:
            yield
        finally:
            with self._changed:
                self._writers -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def sealing(self, path: Path) -> Iterator[set[Key]]:
        """Seals a file, or a directory with all that is in it: it does not change in the block.
        Yields what is sealed."""
        with self._changed:
            while self._writers:
                self._changed.wait()
            keys = {key for key, _ in _walk(path)}
            if not self._sealed.isdisjoint(keys):
                raise refused(errno.EBUSY)
            self._sealed |= keys
        try:
            yield keys
        finally:
            with self._changed:
                self._sealed -= keys


def files_below(path: Path) -> list[tuple[Key, str]]:
    """The regular files of a directory, with their paths in it; or a file, with its name."""
    return [(key, inside) for key, inside in _walk(path) if inside is not None]


def _walk(path: Path) -> Iterator[tuple[Key, str | None]]:
    """All that is there; with a path for each file."""
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        yield key_of(found), path.name
        return
    for folder, _, files, descriptor in os.fwalk(path):
        yield key_of(os.fstat(descriptor)), None
        for file in files:
            found = os.stat(file, dir_fd=descriptor, follow_symlinks=False)
            yield key_of(found), str((Path(folder) / file).relative_to(path))


def key_of(found: os.stat_result) -> Key:
    return found.st_dev, found.st_ino


class StagedNode(Node):
    """A file or directory of the staging area, or the open file ``descriptor``."""

    def __init__(self, staging: Staging, inside: str, descriptor: int = -1) -> None:
        self._staging = staging
        self._descriptor = staging.hidden.get(inside, descriptor)
        self.path = staging.folder / inside
        self.inside = inside
        # A path of the file itself, whatever its name is.
        self._place = Path(f"/proc/self/fd/{self._descriptor}") if self._is_open else self.path

    @property
    def _is_open(self) -> bool:
        return self._descriptor >= 0

    def stat(self) -> Stat:
        return stat_of(self._found())

    def xattrs(self) -> Mapping[str, bytes]:
        return self._staging.xattrs(self._key())

    def set_xattr(self, name: str, value: bytes, flags: int) -> None:
        if not name.startswith("user."):
            raise refused(errno.EOPNOTSUPP)
        there = name in self.xattrs()
        if flags & os.XATTR_CREATE and there:
            raise refused(errno.EEXIST)
        if flags & os.XATTR_REPLACE and not there:
            raise refused(errno.ENODATA)
        self._staging.set_xattr(self._key(), name, value)

    def remove_xattr(self, name: str) -> None:
        self._staging.remove_xattr(self._key(), name)

    def open(self, flags: int) -> Handle:
        if stat.S_ISDIR(self._found().st_mode):
            return _StagedFolder(os.open(self._place, os.O_RDONLY | os.O_DIRECTORY | _OPEN))
        with self._changing() if flags & os.O_TRUNC else contextlib.nullcontext():
            follow = 0 if self._is_open else os.O_NOFOLLOW
            return _StagedFile(
                self._staging, os.open(self._place, flags & _ACCESS | _OPEN | follow)
            )

    def chmod(self, mode: int) -> None:
        with self._changing():
            self._place.chmod(mode & _PERMISSIONS)

    def chown(self, owner: Owner) -> None:
        with self._changing():
            os.chown(self._place, owner.uid, owner.gid)

    def truncate(self, size: int) -> None:
        with self._changing():
            # An open file may be written to, whatever its mode is.
            os.truncate(self._descriptor if self._is_open else self._place, size)

    def set_times(self, *times: Time) -> None:
        """Sets the times of the last access and the last change."""
        with self._changing():
            found = self._found()
            old = found.st_atime_ns, found.st_mtime_ns
            values = [_time(new, before) for new, before in zip(times, old, strict=True)]
            os.utime(self._place, ns=(values[0], values[1]))

    # What changes the directory that a name is in

    def create(self, flags: int, mode: int, owner: Owner) -> Handle:
        flags = flags & (_ACCESS | os.O_EXCL) | os.O_CREAT | os.O_NOFOLLOW | _OPEN
        with self._changing_parent():
            descriptor = os.open(self.path, flags, 0o600)
            os.fchmod(descriptor, mode & _PERMISSIONS)
            _give(descriptor, owner)
        return _StagedFile(self._staging, descriptor)

    def make_folder(self, mode: int, owner: Owner) -> None:
        with self._changing_parent():
            self.path.mkdir(0o700)
            self.path.chmod(mode & _PERMISSIONS)
            _give(self.path, owner)

    def unlink(self) -> None:
        with self._changing_parent():
            key = self._key()
            self.path.unlink()
            self._staging.drop(key)

    def hide(self, name: StagedNode) -> None:
        """Removes a file that is open. ``name`` is what libfuse calls it until it is closed."""
        with self._changing_parent(self._key()):
            descriptor = os.open(self.path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
            self.path.unlink()
            self._staging.hide(name.inside, descriptor)

    def remove_folder(self) -> None:
        with self._changing_parent():
            key = self._key()
            self.path.rmdir()
            self._staging.drop(key)

    def rename(self, new: StagedNode, flags: int) -> None:
        moved = self._key()
        replaced = None
        with contextlib.suppress(FileNotFoundError):
            replaced = new._key()
        with self._changing_parent(new._parent_key(), moved, replaced or moved):
            renaming.rename(self.path, new.path, flags)
        # With RENAME_EXCHANGE (2) both go on.
        if replaced and replaced != moved and not flags & ~renaming.NOREPLACE:
            self._staging.drop(replaced)

    def _found(self) -> os.stat_result:
        return os.fstat(self._descriptor) if self._is_open else self.path.lstat()

    def _key(self) -> Key:
        return key_of(self._found())

    def _parent_key(self) -> Key:
        return key_of(self.path.parent.lstat())

    def _changing(self) -> contextlib.AbstractContextManager[None]:
        return self._staging.changing(self._key())

    def _changing_parent(self, *keys: Key) -> contextlib.AbstractContextManager[None]:
        return self._staging.changing(self._parent_key(), *keys)


class _StagedFolder(Handle):
    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def stat(self) -> Stat:
        return stat_of(os.fstat(self.descriptor))

    def entries(self) -> list[Entry]:
        with os.scandir(self.descriptor) as found:
            return [(entry.name, entry.inode(), _kind(entry)) for entry in found]

    def close(self) -> None:
        os.close(self.descriptor)


class _StagedFile(Handle):
    def __init__(self, staging: Staging, descriptor: int) -> None:
        self._staging = staging
        self._key = key_of(os.fstat(descriptor))
        self.descriptor = descriptor
        staging.opened(self._key)

    def stat(self) -> Stat:
        return stat_of(os.fstat(self.descriptor))

    def read(self, offset: int, out: memoryview) -> int:
        return os.preadv(self.descriptor, [out], offset)

    def write(self, offset: int, data: memoryview) -> int:
        with self._staging.changing(self._key):
            return os.pwrite(self.descriptor, data, offset)

    def allocate(self, offset: int, length: int, mode: int) -> None:
        if mode:
            raise refused(errno.EOPNOTSUPP)
        with self._staging.changing(self._key):
            os.posix_fallocate(self.descriptor, offset, length)

    def fsync(self, data_only: bool) -> None:
        (os.fdatasync if data_only else os.fsync)(self.descriptor)

    def close(self) -> None:
        os.close(self.descriptor)
        self._staging.closed(self._key)


def stat_of(found: os.stat_result) -> Stat:
    values: Stat = {name: getattr(found, name) for name in _FIELDS}
    times = {name: getattr(found, f"{name}_ns") for name in ("st_atime", "st_mtime", "st_ctime")}
    return values | times


def _time(new: Time, before: int) -> int:
    """A time of utimensat(2), in nanoseconds."""
    seconds, nanoseconds = new
    if nanoseconds == _UTIME_OMIT:
        return before
    return time.time_ns() if nanoseconds == _UTIME_NOW else seconds * 10**9 + nanoseconds


def _kind(entry: os.DirEntry[str]) -> int:
    return stat.S_IFDIR if entry.is_dir(follow_symlinks=False) else stat.S_IFREG


def _give(file: int | Path, owner: Owner) -> None:
    """New files belong to who makes them. Only root can do that, and only root needs to."""
    if os.geteuid() == 0:
        os.chown(file, owner.uid, owner.gid)
