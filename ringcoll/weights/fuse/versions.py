"""The read-only part: directories and files of versions, and the link ``latest``."""

from __future__ import annotations

import errno
import json
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ringcoll.weights.formats import Layout, Manifest, Tensor, npy_layout, safetensors_layout
from ringcoll.weights.fuse.guard import Guard
from ringcoll.weights.fuse.nodes import (
    FILE_MODE,
    FOLDER_MODE,
    LINK_MODE,
    SHORTLY_S,
    Entry,
    FolderHandle,
    Handle,
    Node,
    inode_of,
    refused,
)
from ringcoll.weights.fuse.protocol import Attr
from ringcoll.weights.names import MODEL_FILE, folders_of, possible_paths
from ringcoll.weights.source import Lease, VersionInfo

log = logging.getLogger("ringcoll.mount")

XATTR = "user.ringcoll."
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_TRUNC


class File:
    """A file of a version. ``tensor``: that of a .npy file; None for the safetensors file."""

    def __init__(self, tensor: Tensor | None, make: Callable[[], Layout]) -> None:
        self.tensor = tensor
        self._make = make

    @cached_property
    def layout(self) -> Layout:
        return self._make()


class Snapshot:
    """A version's files, from its manifest."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        paths, errors = possible_paths(tensor.name for tensor in manifest.tensors)
        for error in errors:
            log.warning("version %d: %s", manifest.version, error)
        self.files = {MODEL_FILE: File(None, lambda: safetensors_layout(manifest))}
        for tensor in manifest.tensors:
            if tensor.name in paths:
                make = _maker(tensor)
                self.files[paths[tensor.name]] = File(tensor, make)
        # For each directory, its entries: name, and whether it is a directory.
        self.folders: dict[str, dict[str, bool]] = {"": {}}
        for path in self.files:
            inside = ""
            for folder in folders_of(path):
                self.folders[inside][folder.rpartition("/")[2]] = True
                self.folders.setdefault(folder, {})
                inside = folder
            self.folders[inside][path.rpartition("/")[2]] = False

    def xattrs(self, file: File | None = None) -> dict[str, bytes]:
        """The extended attributes of a file or, without ``file``, of a directory."""
        metadata = self.manifest.metadata
        values = {
            "version": str(self.manifest.version),
            "metadata": json.dumps(dict(metadata), default=str),
        }
        if "step" in metadata:
            values["step"] = str(metadata["step"])
        if file is not None and (tensor := file.tensor) is not None:
            values |= {
                "name": tensor.name,
                "dtype": tensor.dtype,
                "shape": json.dumps(list(tensor.shape)),
            }
        return {XATTR + name: value.encode() for name, value in values.items()}


def _maker(tensor: Tensor) -> Callable[[], Layout]:
    return lambda: npy_layout(tensor)


@dataclass
class _Held:
    lease: Lease
    count: int = 1


class Versions:
    """What all inodes of versions share: the source, the snapshots, and the leases."""

    def __init__(self, guard: Guard, uid: int, gid: int) -> None:
        self.guard = guard
        self._uid = uid
        self._gid = gid
        self._lock = threading.Lock()
        self._snapshots: dict[int, Snapshot] = {}
        self._held: dict[int, _Held] = {}

    def infos(self) -> Sequence[VersionInfo]:
        """The versions that can be read. Drops the snapshots of others that nobody has open."""
        infos = self.guard.versions()
        there = {info.number for info in infos}
        with self._lock:
            for number in self._snapshots.keys() - there - self._held.keys():
                del self._snapshots[number]
        return infos

    def snapshot(self, number: int) -> Snapshot:
        # The lock is not held while the source is asked: it may not answer.
        found = self._snapshots.get(number)
        if found is None:
            made = Snapshot(self.guard.manifest(number))
            with self._lock:
                found = self._snapshots.setdefault(number, made)
        return found

    def hold(self, number: int) -> None:
        """Counts one open file of a version. The first one takes a lease."""
        with self._lock:
            if held := self._held.get(number):
                held.count += 1
                return
        lease = self.guard.lease(number)
        with self._lock:
            if held := self._held.get(number):
                held.count += 1
            else:
                self._held[number] = _Held(lease)
        if held:
            lease.close()

    def release(self, number: int) -> None:
        with self._lock:
            held = self._held[number]
            held.count -= 1
            if held.count:
                return
            del self._held[number]
        held.lease.close()

    def attr(self, inode: int, mode: int, size: int, time: float) -> Attr:
        stamp = int(time * 1e9)
        return Attr(inode, mode, size, 1, self._uid, self._gid, stamp, stamp, stamp)


class VersionFolder(Node):
    """The directory of a version (``path`` is ""), or one inside it."""

    def __init__(self, versions: Versions, number: int, path: str = "") -> None:
        super().__init__(("version", number, path))
        self._versions = versions
        self._number = number
        self._path = path
        if not path:
            self.entry_s = SHORTLY_S

    def attr(self, handle: Handle | None = None) -> Attr:
        snapshot = self._versions.snapshot(self._number)
        return self._versions.attr(inode_of(self.key), FOLDER_MODE, 0, snapshot.manifest.time)

    def xattrs(self) -> Mapping[str, bytes]:
        return self._versions.snapshot(self._number).xattrs()

    def lookup(self, name: str) -> Node:
        snapshot = self._versions.snapshot(self._number)
        is_folder = snapshot.folders[self._path].get(name)
        if is_folder is None:
            raise refused(errno.ENOENT)
        kind = VersionFolder if is_folder else VersionFile
        return kind(self._versions, self._number, self._inside(name))

    def entries(self) -> list[Entry]:
        snapshot = self._versions.snapshot(self._number)
        return [
            (
                name,
                inode_of(("version", self._number, self._inside(name))),
                FOLDER_MODE if is_folder else FILE_MODE,
            )
            for name, is_folder in snapshot.folders[self._path].items()
        ]

    def open(self, flags: int) -> Handle:
        return FolderHandle(self)

    def _inside(self, name: str) -> str:
        return f"{self._path}/{name}" if self._path else name


class VersionFile(Node):
    """A file of a version. Its bytes never change."""

    def __init__(self, versions: Versions, number: int, path: str) -> None:
        super().__init__(("version", number, path))
        self._versions = versions
        self._number = number
        self._path = path

    def attr(self, handle: Handle | None = None) -> Attr:
        snapshot, file = self._found()
        time = snapshot.manifest.time
        return self._versions.attr(inode_of(self.key), FILE_MODE, file.layout.size, time)

    def xattrs(self) -> Mapping[str, bytes]:
        snapshot, file = self._found()
        return snapshot.xattrs(file)

    def open(self, flags: int) -> Handle:
        if flags & _WRITING:
            raise refused(errno.EROFS)
        _, file = self._found()
        self._versions.hold(self._number)
        return _OpenFile(self._versions, self._number, file.layout)

    def _found(self) -> tuple[Snapshot, File]:
        snapshot = self._versions.snapshot(self._number)
        return snapshot, snapshot.files[self._path]


class _OpenFile(Handle):
    is_immutable = True

    def __init__(self, versions: Versions, number: int, layout: Layout) -> None:
        self._versions = versions
        self._number = number
        self._layout = layout

    def read(self, offset: int, size: int, buffer: memoryview) -> memoryview:
        size = max(0, min(size, self._layout.size - offset))
        out = buffer[:size]
        pieces = list(self._layout.plan(offset, out))
        if pieces:
            self._versions.guard.read(self._number, pieces)
        return out

    def close(self) -> None:
        self._versions.release(self._number)


class Latest(Node):
    """The symbolic link to the newest version. The kernel asks each time."""

    entry_s = 0.0
    attr_s = 0.0

    def __init__(self, versions: Versions) -> None:
        super().__init__("latest")
        self._versions = versions

    def attr(self, handle: Handle | None = None) -> Attr:
        newest = self._newest()
        size = len(str(newest.number))
        return self._versions.attr(inode_of(self.key), LINK_MODE, size, newest.time)

    def link_target(self) -> str:
        return str(self._newest().number)

    def _newest(self) -> VersionInfo:
        infos = self._versions.infos()
        if not infos:
            raise refused(errno.ENOENT)
        return infos[-1]
