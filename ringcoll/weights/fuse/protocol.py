"""The messages of /dev/fuse, as far as this file system uses them: see fuse(4) and linux/fuse.h.

Each request is a header, a structure that depends on its opcode, and names or data. Each reply is a
header and the same. All numbers have the byte order of the machine.
"""

from __future__ import annotations

import stat
import struct
from dataclasses import dataclass
from enum import IntEnum, IntFlag


class Opcode(IntEnum):
    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    READLINK = 5
    SYMLINK = 6
    MKNOD = 8
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    LINK = 13
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    SETXATTR = 21
    GETXATTR = 22
    LISTXATTR = 23
    REMOVEXATTR = 24
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    FSYNCDIR = 30
    CREATE = 35
    INTERRUPT = 36
    DESTROY = 38
    BATCH_FORGET = 42
    FALLOCATE = 43
    RENAME2 = 45


class Init(IntFlag):
    """What the server asks of the kernel at the start."""

    ASYNC_READ = 1 << 0
    ATOMIC_O_TRUNC = 1 << 3
    BIG_WRITES = 1 << 5
    PARALLEL_DIROPS = 1 << 18
    MAX_PAGES = 1 << 22
    # The kernel does not ask for security.capability before each write.
    HANDLE_KILLPRIV_V2 = 1 << 28


class Set(IntFlag):
    """Which fields a SETATTR has."""

    MODE = 1 << 0
    UID = 1 << 1
    GID = 1 << 2
    SIZE = 1 << 3
    ATIME = 1 << 4
    MTIME = 1 << 5
    FH = 1 << 6
    ATIME_NOW = 1 << 7
    MTIME_NOW = 1 << 8


ROOT_ID = 1
OPEN_KEEP_CACHE = 1 << 1
# Closing a file is no request. A kernel before 5.18 does not know it.
OPEN_NO_FLUSH = 1 << 5
GETATTR_FH = 1
MAJOR = 7
# The newest minor version whose structures are those below.
MINOR = 38
# The oldest kernel whose structures are those below: 5.4.
OLDEST_MINOR = 31

IN_HEADER = struct.Struct("=IIQQIIIHH")
OUT_HEADER = struct.Struct("=IiQ")
INIT_IN = struct.Struct("=IIII")
INIT_OUT = struct.Struct("=IIIIHHIIHHII24x")
ATTR = struct.Struct("=QQQQQQIIIIIIIIII")
ENTRY_OUT = struct.Struct("=QQQQII")
ENTRY_BYTES = ENTRY_OUT.size + ATTR.size
ATTR_OUT = struct.Struct("=QII")
GETATTR_IN = struct.Struct("=I4xQ")
SETATTR_IN = struct.Struct("=I4xQQQQQQIIIIIII4x")
MKDIR_IN = struct.Struct("=II")
MKNOD_IN = struct.Struct("=IIII")
RENAME_IN = struct.Struct("=Q")
RENAME2_IN = struct.Struct("=QI4x")
OPEN_IN = struct.Struct("=II")
CREATE_IN = struct.Struct("=IIII")
OPEN_OUT = struct.Struct("=QIi")
READ_IN = struct.Struct("=QQIIQII")
WRITE_IN = struct.Struct("=QQIIQII")
WRITE_OUT = struct.Struct("=I4x")
FSYNC_IN = struct.Struct("=QI4x")
FH_IN = struct.Struct("=Q")
STATFS_OUT = struct.Struct("=QQQQQIIII24x")
SETXATTR_IN = struct.Struct("=II")
GETXATTR_IN = struct.Struct("=I4x")
GETXATTR_OUT = struct.Struct("=I4x")
FALLOCATE_IN = struct.Struct("=QQQI4x")
FORGET_IN = struct.Struct("=Q")
BATCH_FORGET_IN = struct.Struct("=I4x")
FORGET_ONE = struct.Struct("=QQ")
DIRENT = struct.Struct("=QQII")


@dataclass(slots=True)
class Request:
    """One request. ``body`` is what follows the header, and is valid until it is answered."""

    opcode: int
    unique: int
    node: int
    uid: int
    gid: int
    body: memoryview

    def fields(self, layout: struct.Struct) -> tuple[int, ...]:
        return layout.unpack_from(self.body)

    def rest(self, layout: struct.Struct) -> memoryview:
        """What follows the structure."""
        return self.body[layout.size :]

    def names(self, layout: struct.Struct | None = None) -> list[str]:
        """The names at the end of the request."""
        data = bytes(self.body if layout is None else self.rest(layout))
        return [name.decode(errors="surrogateescape") for name in data.split(b"\0")[:-1]]


def parse(message: memoryview) -> Request:
    _, opcode, unique, node, uid, gid, _, _, _ = IN_HEADER.unpack_from(message)
    return Request(opcode, unique, node, uid, gid, message[IN_HEADER.size :])


@dataclass(slots=True)
class Attr:
    """What stat(2) says of a file. Times are in nanoseconds since 1970."""

    inode: int
    mode: int
    size: int = 0
    links: int = 1
    uid: int = 0
    gid: int = 0
    atime: int = 0
    mtime: int = 0
    ctime: int = 0
    blocks: int = 0

    def pack(self) -> bytes:
        times = (self.atime, self.mtime, self.ctime)
        return ATTR.pack(
            self.inode,
            self.size,
            self.blocks or -(-self.size // 512),
            *(time // 10**9 for time in times),
            *(time % 10**9 for time in times),
            self.mode,
            self.links,
            self.uid,
            self.gid,
            0,
            4096,
            0,
        )


def entry(node: int, attr: Attr, entry_s: float, attr_s: float) -> bytes:
    """The answer to a lookup. The kernel remembers the name and the attributes for so long."""
    valid = (int(entry_s), int(attr_s), _nanoseconds(entry_s), _nanoseconds(attr_s))
    return ENTRY_OUT.pack(node, 0, *valid) + attr.pack()


def attributes(attr: Attr, attr_s: float) -> bytes:
    return ATTR_OUT.pack(int(attr_s), _nanoseconds(attr_s), 0) + attr.pack()


def _nanoseconds(seconds: float) -> int:
    return int(seconds % 1 * 1e9)


def directory(entries: list[tuple[str, int, int]], first: int, size: int) -> bytes:
    """Entries (name, inode, mode) of a directory from number ``first`` on, as many as fit into
    ``size`` bytes."""
    packed = bytearray()
    for number, (name, inode, mode) in enumerate(entries[first:], first + 1):
        encoded = name.encode(errors="surrogateescape")
        kind = stat.S_IFMT(mode) >> 12
        record = DIRENT.pack(inode, number, len(encoded), kind) + encoded
        record += bytes(-len(record) % 8)
        if len(packed) + len(record) > size:
            break
        packed += record
    return bytes(packed)


def init_reply(body: memoryview, write_bytes: int, background: int) -> bytes | None:
    """The answer to INIT, which fixes what both sides can do. None if the kernel is too old."""
    major, minor, readahead, offered = INIT_IN.unpack_from(body)
    if (major, minor) < (MAJOR, OLDEST_MINOR):
        return None
    wanted = (
        Init.ASYNC_READ
        | Init.ATOMIC_O_TRUNC
        | Init.BIG_WRITES
        | Init.PARALLEL_DIROPS
        | Init.MAX_PAGES
        | Init.HANDLE_KILLPRIV_V2
    )
    return INIT_OUT.pack(
        MAJOR,
        min(minor, MINOR),
        readahead,
        offered & wanted,
        background,
        background * 3 // 4,
        write_bytes,
        1,
        write_bytes // 4096,
        0,
        0,
        0,
    )
