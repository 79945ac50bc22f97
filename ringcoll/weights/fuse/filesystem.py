"""Calls of libfuse, passed to what is at a path and to open files."""

from __future__ import annotations

import errno
import itertools
import os
import re
import threading
from collections.abc import Iterable
from typing import Any

from ringcoll.weights.fuse import renaming
from ringcoll.weights.fuse.commits import Commits
from ringcoll.weights.fuse.connection import asker
from ringcoll.weights.fuse.guard import Guard
from ringcoll.weights.fuse.nodes import Handle, Node, Stat, refused
from ringcoll.weights.fuse.root import LATEST, STAGING, Root
from ringcoll.weights.fuse.spool import Spool
from ringcoll.weights.fuse.staging import Owner, StagedNode, Staging, Time
from ringcoll.weights.fuse.versions import Latest, Versions
from ringcoll.weights.source import Source

_NAME_BYTES = 255
# libfuse renames a file that is removed while it is open to such a name, and removes that name when
# the file is closed.
_HIDDEN = re.compile(r"\.fuse_hidden[0-9a-f]{16}")


class FileSystem:
    """The operations of a mount, for several threads. The files belong to the user of this process.
    Paths begin with "/". An open file is a number, and 0 is none."""

    use_ns = True  # mfusepy's times

    def __init__(self, source: Source, spool: Spool, limit_s: float, commit_limit_s: float) -> None:
        guard = Guard(source, limit_s, commit_limit_s)
        self.is_ready = threading.Event()
        self._spool = spool
        self._versions = Versions(guard, os.getuid(), os.getgid())
        self._staging = Staging(spool.files)
        self._commits = Commits(guard, self._staging, spool)
        self._root = Root(self._versions, spool, self._commits)
        self._handles: dict[int, Handle] = {}
        self._numbers = itertools.count(1)

    def init(self, path: str) -> None:
        self.is_ready.set()

    def statfs(self, path: str) -> Stat:
        """The free space is that of the staging area."""
        found = os.statvfs(self._spool.files)
        names = ("f_bsize", "f_frsize", "f_blocks", "f_bfree", "f_bavail", "f_files", "f_ffree")
        values: Stat = {name: getattr(found, name) for name in names} | {"f_namemax": _NAME_BYTES}
        try:
            used = sum(info.bytes for info in self._versions.infos())
            values["f_blocks"] += used // found.f_frsize
        except OSError:
            pass  # the staging area can be used without the store
        return values

    # What is at a path

    def getattr(self, path: str | None, file: Any = None) -> Stat:
        if path is None:
            return self._handles[file.fh].stat()
        return self._find(path).stat()

    def readlink(self, path: str) -> str:
        return self._find(path).link_target()

    def listxattr(self, path: str) -> Iterable[str]:
        return self._find(path).xattrs()

    def getxattr(self, path: str, name: str) -> bytes:
        value = self._find(path).xattrs().get(name)
        if value is None:
            raise refused(errno.ENODATA)
        return value

    def setxattr(self, path: str, name: str, value: bytes, flags: int) -> None:
        self._staged(path).set_xattr(name, value, flags)

    def removexattr(self, path: str, name: str) -> None:
        self._staged(path).remove_xattr(name)

    # Changes

    def chmod(self, path: str, mode: int, number: int) -> None:
        self._changed(path, number).chmod(mode)

    def chown(self, path: str, uid: int, gid: int, number: int) -> None:
        self._changed(path, number).chown(Owner(uid, gid))

    def truncate(self, path: str, size: int, number: int) -> None:
        self._changed(path, number).truncate(size)

    def utimens(self, path: str, atime: Time, mtime: Time, number: int) -> None:
        self._changed(path, number).set_times(atime, mtime)

    def mkdir(self, path: str, mode: int) -> None:
        self._inside(path).make_folder(mode, _owner())

    def unlink(self, path: str) -> None:
        self._inside(path).unlink()

    def rmdir(self, path: str) -> None:
        self._inside(path).remove_folder()

    def rename(self, old: str, new: str, flags: int) -> None:
        """Renames inside the staging area, or commits: from there to a new name in the root."""
        moved = self._inside(old)
        folder, _, name = new.rpartition("/")
        if not folder:
            if flags & ~renaming.NOREPLACE:
                raise refused(errno.EINVAL)
            self._root.check_target(name)
            self._commits.commit(moved.path, name)
        elif _HIDDEN.fullmatch(name):
            moved.hide(self._inside(new))
        else:
            moved.rename(self._inside(new), flags)

    def link(self, path: str, target: str) -> None:
        raise refused(errno.EPERM)

    def symlink(self, path: str, target: str) -> None:
        raise refused(errno.EPERM)

    def mknod(self, path: str, mode: int, device: int) -> None:
        raise refused(errno.EPERM)

    # Open files

    def create(self, path: str, mode: int, file: Any) -> None:
        file.fh = self._enter(self._inside(path).create(file.flags, mode, _owner()))

    def open(self, path: str, file: Any) -> None:
        handle = self._find(path).open(file.flags)
        # Without a flush, a file can be closed also if its server was killed.
        file.keep_cache = file.noflush = handle.is_immutable
        file.fh = self._enter(handle)

    def read(self, number: int, offset: int, out: memoryview) -> int:
        return self._handles[number].read(offset, out)

    def write(self, number: int, offset: int, data: memoryview) -> int:
        return self._handles[number].write(offset, data)

    def fallocate(self, path: None, mode: int, offset: int, length: int, file: Any) -> None:
        self._handles[file.fh].allocate(offset, length, mode)

    def fsync(self, path: None, data_only: int, file: Any) -> None:
        self._handles[file.fh].fsync(bool(data_only))

    def release(self, path: None, file: Any) -> None:
        self._handles.pop(file.fh).close()

    def opendir(self, path: str) -> int:
        return self._enter(self._find(path).open(os.O_RDONLY))

    def readdir(self, path: None, number: int) -> Iterable[tuple[str, Stat, int]]:
        handle = self._handles[number]
        own = handle.stat()
        dots = [(name, own["st_ino"], own["st_mode"]) for name in (".", "..")]
        for name, inode, mode in dots + handle.entries():
            yield name, {"st_ino": inode, "st_mode": mode}, 0

    def releasedir(self, path: None, number: int) -> None:
        self._handles.pop(number).close()

    def _enter(self, handle: Handle) -> int:
        number = next(self._numbers)
        self._handles[number] = handle
        return number

    # Paths

    def _find(self, path: str) -> Node:
        first, _, rest = path[1:].partition("/")
        if not first:
            return self._root
        if first == STAGING:
            return StagedNode(self._staging, rest)
        if first == LATEST and not rest:
            return Latest(self._versions)
        return self._versions.find(first, rest)

    def _staged(self, path: str) -> StagedNode:
        """What can be changed: all of the staging area."""
        node = self._find(path) if path[1:].partition("/")[0] == STAGING else None
        if not isinstance(node, StagedNode):
            raise refused(errno.EROFS)
        return node

    def _inside(self, path: str) -> StagedNode:
        """What can be made, moved and removed: all but the staging area itself."""
        if path == f"/{STAGING}":
            raise refused(errno.EROFS)
        return self._staged(path)

    def _changed(self, path: str, number: int) -> StagedNode:
        """What a change is for. If it is open, it may have no path."""
        handle = self._handles.get(number)
        if handle is None:
            return self._staged(path)
        if handle.descriptor < 0:
            raise refused(errno.EROFS)
        return StagedNode(self._staging, "", handle.descriptor)


def _owner() -> Owner:
    return Owner(*asker())
