"""Inodes and open files: what every kind of them can do, and the table of those that the kernel
knows."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import threading
from collections.abc import Hashable, Mapping

from ringcoll.weights.fuse.protocol import ROOT_ID, Attr, Set

# For what can never change. The kernel drops what it does not use when memory is short.
FOREVER_S = 86400.0
# For names of versions, which may go away.
SHORTLY_S = 1.0

Entry = tuple[str, int, int]  # name, inode, mode


class Handle:
    """An open file or directory."""

    # Pages that the kernel has read stay valid after the file is closed, and nothing is written.
    is_immutable = False
    # The descriptor of a real file, or -1.
    descriptor = -1

    def read(self, offset: int, size: int, buffer: memoryview) -> bytes | memoryview:
        raise refused(errno.EISDIR)

    def write(self, offset: int, data: memoryview) -> int:
        raise refused(errno.EBADF)

    def allocate(self, offset: int, length: int, mode: int) -> None:
        raise refused(errno.EROFS)

    def fsync(self, data_only: bool) -> None:
        """Nothing to do by default."""

    def close(self) -> None:
        """Nothing to do by default."""


class Node:
    """An inode. By default it can neither be changed nor contain anything."""

    # How long the kernel may remember a name of this inode, and its attributes.
    entry_s = FOREVER_S
    attr_s = FOREVER_S

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.id = 0
        self.lookups = 0

    def attr(self, handle: Handle | None = None) -> Attr:
        raise NotImplementedError

    def xattrs(self) -> Mapping[str, bytes]:
        return {}

    def lookup(self, name: str) -> Node:
        raise refused(errno.ENOTDIR)

    def entries(self) -> list[Entry]:
        raise refused(errno.ENOTDIR)

    def link_target(self) -> str:
        raise refused(errno.EINVAL)

    def open(self, flags: int) -> Handle:
        raise refused(errno.ENOSYS)

    def set_attr(self, valid: Set, values: SetValues, handle: Handle | None) -> None:
        raise refused(errno.EROFS)

    def set_xattr(self, name: str, value: bytes, flags: int) -> None:
        raise refused(errno.EROFS)

    def remove_xattr(self, name: str) -> None:
        raise refused(errno.EROFS)

    def create(self, name: str, flags: int, mode: int, owner: Owner) -> tuple[Node, Handle]:
        raise refused(errno.EROFS)

    def make_folder(self, name: str, mode: int, owner: Owner) -> Node:
        raise refused(errno.EROFS)

    def unlink(self, name: str) -> None:
        raise refused(errno.EROFS)

    def remove_folder(self, name: str) -> None:
        raise refused(errno.EROFS)

    def close(self) -> None:
        """The kernel has forgotten the inode. Nothing to do by default."""


class Owner:
    """The user and group of who asks."""

    def __init__(self, uid: int, gid: int) -> None:
        self.uid = uid
        self.gid = gid


class SetValues:
    """The values of a SETATTR. Times are in nanoseconds since 1970."""

    def __init__(self, mode: int, owner: Owner, size: int, atime: int, mtime: int) -> None:
        self.mode = mode
        self.owner = owner
        self.size = size
        self.atime = atime
        self.mtime = mtime


class FolderHandle(Handle):
    """An open directory: its entries as they were when it was opened or rewound."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._listed: list[Entry] | None = None

    def listed(self, first: int) -> list[Entry]:
        if self._listed is None or first == 0:
            own = self._node.attr()
            dots = [(".", own.inode, own.mode), ("..", own.inode, own.mode)]
            self._listed = dots + self._node.entries()
        return self._listed


class NodeTable:
    """The inodes that the kernel knows, with the number of lookups that it has not forgotten."""

    def __init__(self, root: Node) -> None:
        root.id, root.lookups = ROOT_ID, 1
        self._lock = threading.Lock()
        self._by_id = {ROOT_ID: root}
        self._by_key = {root.key: root}
        self._last = ROOT_ID

    def __getitem__(self, number: int) -> Node:
        try:
            return self._by_id[number]
        except KeyError:
            raise refused(errno.ESTALE) from None

    def remember(self, node: Node) -> Node:
        """Counts a lookup. Returns the inode that has the same key already, and closes ``node``,
        or enters ``node``. A number is never used again."""
        with self._lock:
            known = self._by_key.setdefault(node.key, node)
            if known.id == 0:
                self._last += 1
                known.id = self._last
                self._by_id[known.id] = known
            known.lookups += 1
        if known is not node:
            node.close()
        return known

    def forget(self, number: int, lookups: int) -> None:
        with self._lock:
            node = self._by_id.get(number)
            if node is None or number == ROOT_ID:
                return
            node.lookups -= lookups
            if node.lookups > 0:
                return
            del self._by_id[number]
            del self._by_key[node.key]
        node.close()


def refused(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def inode_of(key: Hashable) -> int:
    """A number that is the same for the same key, also after another mount. It is above those of a
    real file system."""
    digest = hashlib.blake2b(repr(key).encode(errors="surrogateescape"), digest_size=8).digest()
    return int.from_bytes(digest, "little") | 1 << 63


FOLDER_MODE = stat.S_IFDIR | 0o555
FILE_MODE = stat.S_IFREG | 0o444
LINK_MODE = stat.S_IFLNK | 0o777
