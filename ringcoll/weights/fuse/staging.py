"""The directory ``/staging``: an ordinary directory, whose content a rename can commit.

Its files lie in a real directory, the spool, so that they behave as files do. An inode holds a
descriptor (O_PATH) of the real one. So renames do not matter to it, nobody can lead the server out
of the spool by a symbolic link, and a number of the spool is not used again while the kernel knows
it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from ringcoll.weights.fuse.nodes import (
    SHORTLY_S,
    Entry,
    FolderHandle,
    Handle,
    Node,
    Owner,
    SetValues,
    refused,
)
from ringcoll.weights.fuse.protocol import Attr, Set

_FIND = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_ACCESS = os.O_RDONLY | os.O_WRONLY | os.O_RDWR | os.O_TRUNC
_PERMISSIONS = 0o1777  # never set-user-ID
_XATTR_BYTES = 1 << 16
_XATTR_CREATE, _XATTR_REPLACE = 1, 2

Key = tuple[str, int, int]


class Staging:
    """What all inodes of the staging area share: extended attributes, which not every file system
    can hold, and the seals of what is being committed."""

    def __init__(self) -> None:
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
    def sealing(self, folder: int, name: str) -> Iterator[set[Key]]:
        """Seals a file, or a directory with all that is in it: it does not change in the block.
        Yields what is sealed."""
        with self._changed:
            while self._writers:
                self._changed.wait()
            keys = {key for key, _ in _walk(folder, name)}
            if not self._sealed.isdisjoint(keys):
                raise refused(errno.EBUSY)
            self._sealed |= keys
        try:
            yield keys
        finally:
            with self._changed:
                self._sealed -= keys


def files_below(folder: int, name: str) -> list[tuple[Key, str]]:
    """The regular files of a directory, with their paths in it; or the file ``name`` itself."""
    return [(key, path) for key, path in _walk(folder, name) if path is not None]


def _walk(folder: int, name: str) -> Iterator[tuple[Key, str | None]]:
    """All that is there; with a path for each file."""
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if not stat.S_ISDIR(found.st_mode):
        yield key_of(found), name
        return
    for inside, _, files, descriptor in os.fwalk(name, dir_fd=folder):
        yield key_of(os.fstat(descriptor)), None
        below = inside[len(name) + 1 :]
        for file in files:
            found = os.stat(file, dir_fd=descriptor, follow_symlinks=False)
            yield key_of(found), f"{below}/{file}" if below else file


def key_of(found: os.stat_result) -> Key:
    return "staged", found.st_dev, found.st_ino


class StagedNode(Node):
    """A file or directory of the staging area. ``descriptor`` is taken over."""

    # A commit moves a name to the root, and the store then takes it away. So the kernel asks each
    # time whether a name is still there.
    entry_s = 0.0
    attr_s = SHORTLY_S

    def __init__(self, staging: Staging, descriptor: int) -> None:
        self._found = os.fstat(descriptor)
        self.staged_key = key_of(self._found)
        super().__init__(self.staged_key)
        self.descriptor = descriptor
        self._staging = staging

    def attr(self, handle: Handle | None = None) -> Attr:
        open_one = handle.descriptor if handle and handle.descriptor >= 0 else self.descriptor
        return attr_of(os.fstat(open_one))

    def xattrs(self) -> Mapping[str, bytes]:
        return self._staging.xattrs(self.staged_key)

    def set_xattr(self, name: str, value: bytes, flags: int) -> None:
        if not name.startswith("user."):
            raise refused(errno.EOPNOTSUPP)
        there = name in self.xattrs()
        if flags & _XATTR_CREATE and there:
            raise refused(errno.EEXIST)
        if flags & _XATTR_REPLACE and not there:
            raise refused(errno.ENODATA)
        self._staging.set_xattr(self.staged_key, name, value)

    def remove_xattr(self, name: str) -> None:
        self._staging.remove_xattr(self.staged_key, name)

    def lookup(self, name: str) -> Node:
        return StagedNode(self._staging, os.open(name, _FIND, dir_fd=self.descriptor))

    def entries(self) -> list[Entry]:
        descriptor = os.open(self._path(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with os.scandir(descriptor) as found:
                return [(entry.name, entry.inode(), _kind(entry)) for entry in found]
        finally:
            os.close(descriptor)

    def open(self, flags: int) -> Handle:
        if stat.S_ISDIR(self._found.st_mode):
            return FolderHandle(self)
        with self._changing_if(flags & os.O_TRUNC):
            descriptor = os.open(self._path(), flags & _ACCESS | os.O_CLOEXEC)
        return _StagedFile(self._staging, self.staged_key, descriptor)

    def set_attr(self, valid: Set, values: SetValues, handle: Handle | None) -> None:
        with self._staging.changing(self.staged_key):
            if valid & Set.MODE:
                self._path().chmod(values.mode & _PERMISSIONS)
            if valid & (Set.UID | Set.GID):
                uid = values.owner.uid if valid & Set.UID else -1
                gid = values.owner.gid if valid & Set.GID else -1
                os.chown(self._path(), uid, gid)
            if valid & Set.SIZE:
                open_one = handle.descriptor if handle else -1
                os.truncate(open_one if open_one >= 0 else self._path(), values.size)
            if valid & (Set.ATIME | Set.MTIME):
                self._set_times(valid, values)

    def create(self, name: str, flags: int, mode: int, owner: Owner) -> tuple[Node, Handle]:
        flags = flags & (_ACCESS | os.O_EXCL) | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with self._changing_if(True):
            descriptor = os.open(name, flags, 0o600, dir_fd=self.descriptor)
            os.fchmod(descriptor, mode & _PERMISSIONS)
            _give(descriptor, owner)
        node = StagedNode(self._staging, os.open(f"/proc/self/fd/{descriptor}", os.O_PATH))
        return node, _StagedFile(self._staging, node.staged_key, descriptor)

    def make_folder(self, name: str, mode: int, owner: Owner) -> Node:
        with self._changing_if(True):
            os.mkdir(name, 0o700, dir_fd=self.descriptor)
            node = StagedNode(self._staging, os.open(name, _FIND, dir_fd=self.descriptor))
            node._path().chmod(mode & _PERMISSIONS)
            _give(node._path(), owner)
        return node

    def unlink(self, name: str) -> None:
        with self._changing_if(True):
            found = os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
            os.unlink(name, dir_fd=self.descriptor)
            self._staging.drop(key_of(found))

    def remove_folder(self, name: str) -> None:
        with self._changing_if(True):
            found = os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
            os.rmdir(name, dir_fd=self.descriptor)
            self._staging.drop(key_of(found))

    def close(self) -> None:
        os.close(self.descriptor)

    def _path(self) -> Path:
        """A path of the inode itself, whatever its name is."""
        return Path(f"/proc/self/fd/{self.descriptor}")

    def _changing_if(self, changes: object) -> contextlib.AbstractContextManager[None]:
        if not changes:
            return contextlib.nullcontext()
        return self._staging.changing(self.staged_key)

    def _set_times(self, valid: Set, values: SetValues) -> None:
        found = self._path().stat()
        atime = values.atime if valid & Set.ATIME else found.st_atime_ns
        mtime = values.mtime if valid & Set.MTIME else found.st_mtime_ns
        os.utime(self._path(), ns=(atime, mtime))


class _StagedFile(Handle):
    def __init__(self, staging: Staging, key: Key, descriptor: int) -> None:
        self._staging = staging
        self._key = key
        self.descriptor = descriptor

    def read(self, offset: int, size: int, buffer: memoryview) -> memoryview:
        return buffer[: os.preadv(self.descriptor, [buffer[:size]], offset)]

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


def attr_of(found: os.stat_result) -> Attr:
    return Attr(
        found.st_ino,
        found.st_mode,
        found.st_size,
        found.st_nlink,
        found.st_uid,
        found.st_gid,
        found.st_atime_ns,
        found.st_mtime_ns,
        found.st_ctime_ns,
        found.st_blocks,
    )


def _kind(entry: os.DirEntry[str]) -> int:
    return stat.S_IFDIR if entry.is_dir(follow_symlinks=False) else stat.S_IFREG


def _give(file: int | Path, owner: Owner) -> None:
    """New files belong to who makes them. Only root can do that, and only root needs to."""
    if os.geteuid() == 0:
        os.chown(file, owner.uid, owner.gid)
