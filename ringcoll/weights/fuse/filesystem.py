"""Requests of the kernel, decoded and passed to inodes and open files."""

from __future__ import annotations

import errno
import itertools
import os
import time
from collections.abc import Callable

from ringcoll.weights.fuse import protocol
from ringcoll.weights.fuse.guard import Guard
from ringcoll.weights.fuse.nodes import (
    FolderHandle,
    Handle,
    Node,
    NodeTable,
    Owner,
    SetValues,
    refused,
)
from ringcoll.weights.fuse.protocol import Opcode, Request, Set
from ringcoll.weights.fuse.root import Root
from ringcoll.weights.fuse.server import Reply
from ringcoll.weights.fuse.spool import Spool
from ringcoll.weights.fuse.staging import StagedNode
from ringcoll.weights.fuse.versions import Versions
from ringcoll.weights.source import Source

# The watchdog lets the source's own time limit come first.
_MARGIN_S = 0.5
_NAME_BYTES = 255

_Answer = Callable[["FileSystem", Request, Node, memoryview], Reply]


class FileSystem:
    """The handler of a server. The files belong to the user of this process."""

    def __init__(self, source: Source, spool: Spool, limit_s: float, commit_limit_s: float) -> None:
        self._guard = Guard(source, limit_s, commit_limit_s)
        self._versions = Versions(self._guard, os.getuid(), os.getgid())
        self._spool = spool
        self._root = Root(self._versions, spool)
        self._nodes = NodeTable(self._root)
        self._handles: dict[int, Handle] = {}
        self._numbers = itertools.count(1)

    def handle(self, request: Request, buffer: memoryview) -> Reply:
        if request.opcode in _WITHOUT_NODE:
            return _WITHOUT_NODE[request.opcode](self, request)
        answer = _ANSWERS.get(request.opcode)
        if answer is None:
            # The kernel does not ask again after ENOSYS; what makes links and devices is refused.
            known = request.opcode in (Opcode.SYMLINK, Opcode.LINK, Opcode.MKNOD)
            raise refused(errno.EPERM if known else errno.ENOSYS)
        return answer(self, request, self._nodes[request.node], buffer)

    def limit_s(self, request: Request) -> float | None:
        if request.opcode in (Opcode.RENAME, Opcode.RENAME2):
            return self._guard.commit_limit_s + _MARGIN_S
        try:
            staged = isinstance(self._nodes[request.node], StagedNode)
        except OSError:
            return None
        return None if staged else self._guard.limit_s + _MARGIN_S

    def overdue(self, request: Request) -> None:
        self._guard.overdue()

    def returned(self, request: Request) -> None:
        self._guard.returned()

    def undo(self, request: Request, reply: Reply) -> None:
        """Closes and forgets what the kernel has not got."""
        if request.opcode in _ENTRIES:
            self._nodes.forget(protocol.ENTRY_OUT.unpack_from(reply)[0], 1)
        opened = {Opcode.OPEN: 0, Opcode.OPENDIR: 0, Opcode.CREATE: protocol.ENTRY_BYTES}
        if request.opcode in opened:
            number, _, _ = protocol.OPEN_OUT.unpack_from(reply, opened[Opcode(request.opcode)])
            self._close(number)

    # What changes no inode

    def _forget(self, request: Request) -> Reply:
        self._nodes.forget(request.node, request.fields(protocol.FORGET_IN)[0])
        return b""

    def _forget_many(self, request: Request) -> Reply:
        (count,) = request.fields(protocol.BATCH_FORGET_IN)
        data = request.rest(protocol.BATCH_FORGET_IN)[: count * protocol.FORGET_ONE.size]
        for number, lookups in protocol.FORGET_ONE.iter_unpack(data):
            self._nodes.forget(number, lookups)
        return b""

    def _nothing(self, request: Request) -> Reply:
        return b""

    def _statfs(self, request: Request) -> Reply:
        """The free space is that of the staging area."""
        found = os.fstatvfs(self._spool.files)
        try:
            used = sum(info.bytes for info in self._versions.infos()) // found.f_frsize
        except OSError:
            used = 0
        return protocol.STATFS_OUT.pack(
            found.f_blocks + used,
            found.f_bfree,
            found.f_bavail,
            found.f_files,
            found.f_ffree,
            found.f_bsize,
            _NAME_BYTES,
            found.f_frsize,
            0,
        )

    # Inodes

    def _lookup(self, request: Request, node: Node, buffer: memoryview) -> Reply:
        return self._entry(node.lookup(request.names()[0]))

    def _entry(self, child: Node) -> Reply:
        try:
            attr = child.attr()
        except OSError:
            child.close()
            raise
        child = self._nodes.remember(child)
        return protocol.entry(child.id, attr, child.entry_s, child.attr_s)

    def _getattr(self, request: Request, node: Node, buffer: memoryview) -> Reply:
        flags, number = request.fields(protocol.GETATTR_IN)
        handle = self._handles.get(number) if flags & protocol.GETATTR_FH else None
        return protocol.attributes(node.attr(handle), node.attr_s)

    def _setattr(self, request: Request, node: Node, buffer: memoryview) -> Reply:
        fields = request.fields(protocol.SETATTR_IN)
        bits, number, size, _, atime, mtime, _, atime_ns, mtime_ns, _, mode, _, uid, gid = fields
        valid = Set(bits)
        now = time.time_ns()
        values = SetValues(
            mode,
            Owner(uid, gid),
            size,
            now if valid & Set.ATIME_NOW else atime * 10**9 + atime_ns,
            now if valid & Set.MTIME_NOW else mtime * 10**9 + mtime_ns,
        )
        handle = self._handles.get(number) if valid & Set.FH else None
        node.set_attr(valid, values, handle)
        return protocol.attributes(node.attr(handle), node.attr_s)

    def _readlink(self, request: Request, node: Node, buffer: memoryview) -> Reply:
        return os.fsencode(node.link_target())

    def _mkdir(self, request: Request, node: Node, buffer: memoryview) -> Reply:
        mode, _ = request.fields(protocol.MKDIR_IN)
        name = request.names(protocol.MKDIR_IN)[0]
        return self._entry(node.make_folder(name, mode, _owner(request)))

    def _unlink(self, request: Request, node: Node, buffer: memoryview) -> Reply:
        node.unlink(request.names()[0])
        return b""

    def _rmdir(self, request: Request, node: Node, buffer: memoryview) -> Reply:
        node.remove_folder(request.names()[0])
        return b""

    def _rename(self, request: Request, node: Node, buffer: memoryview) -> Reply:
        (folder,) = request.fields(protocol.RENAME_IN)
        old, new = request.names(protocol.RENAME_IN)
        self._root.rename(node, old, self._nodes[folder], new, 0)
        return b""

    def _rename2(self, request: Request, node: Node, buffer: memoryview) -> Reply:
        folder, flags = request.fields(protocol.RENAME2_IN)
        old, new = request.names(protocol.RENAME2_IN)
        self._root.rename(node, old, self._nodes[folder], new, flags)
        return b""

    # Extended attributes

    def _getxattr(self, request: Request, node: Node, buffer: memoryview) -> Reply:
        (size,) = request.fields(protocol.GETXATTR_IN)
        value = node.xattrs().get(request.names(protocol.GETXATTR_IN)[0])
        if value is None:
            raise refused(errno.ENODATA)
        return _sized(value, size)

    def _listxattr(self, request: Request, node: Node, buffer: memoryview) -> Reply:
        (size,) = request.fields(protocol.GETXATTR_IN)
        names = b"".join(os.fsencode(name) + b"\0" for name in node.xattrs())
        return _sized(names, size)

    def _setxattr(self, request: Request, node: Node, buffer: memoryview) -> Reply:
        size, flags = request.fields(protocol.SETXATTR_IN)
        name, _, value = bytes(request.rest(protocol.SETXATTR_IN)).partition(b"\0")
        node.set_xattr(os.fsdecode(name), value[:size], flags)
        return b""

    def _removexattr(self, request: Request, node: Node, buffer: memoryview) -> Reply:
        node.remove_xattr(request.names()[0])
        return b""

    # Open files

    def _open(self, request: Request, node: Node, buffer: memoryview) -> Reply:
        flags, _ = request.fields(protocol.OPEN_IN)
        return self._opened(node.open(flags))

    def _opened(self, handle: Handle) -> bytes:
        number = next(self._numbers)
        self._handles[number] = handle
        flags = protocol.OPEN_KEEP_CACHE | protocol.OPEN_NO_FLUSH if handle.is_immutable else 0
        return protocol.OPEN_OUT.pack(number, flags, 0)

    def _create(self, request: Request, node: Node, buffer: memoryview) -> Reply:
        flags, mode, _, _ = request.fields(protocol.CREATE_IN)
        name = request.names(protocol.CREATE_IN)[0]
        child, handle = node.create(name, flags, mode, _owner(request))
        return bytes(self._entry(child)) + self._opened(handle)

    def _read(self, request: Request, node: Node, buffer: memoryview) -> Reply:
        number, offset, size, *_ = request.fields(protocol.READ_IN)
        return self._found(number).read(offset, min(size, len(buffer)), buffer)

    def _write(self, request: Request, node: Node, buffer: memoryview) -> Reply:
        number, offset, size, *_ = request.fields(protocol.WRITE_IN)
        data = request.rest(protocol.WRITE_IN)[:size]
        return protocol.WRITE_OUT.pack(self._found(number).write(offset, data))

    def _fallocate(self, request: Request, node: Node, buffer: memoryview) -> Reply:
        number, offset, length, mode = request.fields(protocol.FALLOCATE_IN)
        self._found(number).allocate(offset, length, mode)
        return b""

    def _fsync(self, request: Request, node: Node, buffer: memoryview) -> Reply:
        number, data_only = request.fields(protocol.FSYNC_IN)
        self._found(number).fsync(bool(data_only & 1))
        return b""

    def _release(self, request: Request, node: Node, buffer: memoryview) -> Reply:
        self._close(request.fields(protocol.FH_IN)[0])
        return b""

    def _close(self, number: int) -> None:
        if (handle := self._handles.pop(number, None)) is not None:
            handle.close()

    def _readdir(self, request: Request, node: Node, buffer: memoryview) -> Reply:
        number, first, size, *_ = request.fields(protocol.READ_IN)
        handle = self._found(number)
        if not isinstance(handle, FolderHandle):
            raise refused(errno.ENOTDIR)
        return protocol.directory(handle.listed(first), first, size)

    def _found(self, number: int) -> Handle:
        try:
            return self._handles[number]
        except KeyError:
            raise refused(errno.EBADF) from None

    def _done(self, request: Request, node: Node, buffer: memoryview) -> Reply:
        return b""


def _owner(request: Request) -> Owner:
    return Owner(request.uid, request.gid)


def _sized(value: bytes, size: int) -> bytes:
    """The answer to a question for an extended attribute: its size if ``size`` is 0."""
    if size == 0:
        return protocol.GETXATTR_OUT.pack(len(value))
    if len(value) > size:
        raise refused(errno.ERANGE)
    return value


# Requests whose answer begins with an inode, whose lookups the kernel then counts.
_ENTRIES = (Opcode.LOOKUP, Opcode.MKDIR, Opcode.CREATE)
_WITHOUT_NODE: dict[int, Callable[[FileSystem, Request], Reply]] = {
    Opcode.FORGET: FileSystem._forget,
    Opcode.BATCH_FORGET: FileSystem._forget_many,
    Opcode.INTERRUPT: FileSystem._nothing,
    Opcode.DESTROY: FileSystem._nothing,
    Opcode.STATFS: FileSystem._statfs,
}
_ANSWERS: dict[int, _Answer] = {
    Opcode.LOOKUP: FileSystem._lookup,
    Opcode.GETATTR: FileSystem._getattr,
    Opcode.SETATTR: FileSystem._setattr,
    Opcode.READLINK: FileSystem._readlink,
    Opcode.MKDIR: FileSystem._mkdir,
    Opcode.UNLINK: FileSystem._unlink,
    Opcode.RMDIR: FileSystem._rmdir,
    Opcode.RENAME: FileSystem._rename,
    Opcode.RENAME2: FileSystem._rename2,
    Opcode.GETXATTR: FileSystem._getxattr,
    Opcode.LISTXATTR: FileSystem._listxattr,
    Opcode.SETXATTR: FileSystem._setxattr,
    Opcode.REMOVEXATTR: FileSystem._removexattr,
    Opcode.OPEN: FileSystem._open,
    Opcode.OPENDIR: FileSystem._open,
    Opcode.CREATE: FileSystem._create,
    Opcode.READ: FileSystem._read,
    Opcode.WRITE: FileSystem._write,
    Opcode.FALLOCATE: FileSystem._fallocate,
    Opcode.FSYNC: FileSystem._fsync,
    Opcode.FLUSH: FileSystem._done,
    Opcode.FSYNCDIR: FileSystem._done,
    Opcode.RELEASE: FileSystem._release,
    Opcode.RELEASEDIR: FileSystem._release,
    Opcode.READDIR: FileSystem._readdir,
}
