"""What can be at a path, and what can be open."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Hashable, Mapping

FOLDER_MODE = stat.S_IFDIR | 0o555
FILE_MODE = stat.S_IFREG | 0o444
LINK_MODE = stat.S_IFLNK | 0o777

Entry = tuple[str, int, int]  # name, inode, mode
Stat = dict[str, int]  # fields of stat(2); times are in nanoseconds since 1970


class Handle:
    """An open file or directory."""

    # Pages that the kernel has read stay valid after the file is closed, and nothing is written.
    is_immutable = False
    # The descriptor of a real file, or -1.
    descriptor = -1

    def stat(self) -> Stat:
        raise refused(errno.EBADF)

    def entries(self) -> list[Entry]:
        raise refused(errno.ENOTDIR)

    def read(self, offset: int, out: memoryview) -> int:
        """Reads as many bytes as ``out`` has, or as the file has there, and returns how many."""
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
    """What is at a path, for the time of one request."""

    def stat(self) -> Stat:
        raise NotImplementedError

    def xattrs(self) -> Mapping[str, bytes]:
        return {}

    def entries(self) -> list[Entry]:
        raise refused(errno.ENOTDIR)

    def link_target(self) -> str:
        raise refused(errno.EINVAL)

    def open(self, flags: int) -> Handle:
        return FolderHandle(self)


class FolderHandle(Handle):
    """An open directory of versions."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def stat(self) -> Stat:
        return self._node.stat()

    def entries(self) -> list[Entry]:
        return self._node.entries()


def refused(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def inode_of(key: Hashable) -> int:
    """A number that is the same for the same key, also after another mount. It is above those of a
    real file system."""
    digest = hashlib.blake2b(repr(key).encode(errors="surrogateescape"), digest_size=8).digest()
    return int.from_bytes(digest, "little") | 1 << 63
