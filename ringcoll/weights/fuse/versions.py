"""The read-only part: directories and files of versions, and the link ``latest``."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
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
    Entry,
    Handle,
    Node,
    Stat,
    inode_of,
    refused,
)
from ringcoll.weights.names import MODEL_FILE, folders_of, possible_paths
from ringcoll.weights.source import Lease, VersionInfo

log = logging.getLogger("ringcoll.mount")

XATTR = "user.ringcoll."
_NUMBER = re.compile(r"0|[1-9][0-9]*")
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

    def find(self, version: str, path: str) -> Node:
        """What is at a path of a version; raises ENOENT if it is not there. A version that has been
        taken away is found as long as files of it are open, but not its directory."""
        if not is_number(version):
            raise refused(errno.ENOENT)
        number = int(version)
        if not path and not self.has(number):
            raise refused(errno.ENOENT)
        snapshot = self.snapshot(number)
        if path in snapshot.folders:
            return VersionFolder(self, snapshot, path)
        if (file := snapshot.files.get(path)) is None:
            raise refused(errno.ENOENT)
        return VersionFile(self, snapshot, path, file)

    def has(self, number: int) -> bool:
        return any(info.number == number for info in self.infos())

    def stat(self, inode: int, mode: int, size: int, time: float) -> Stat:
        stamp = int(time * 1e9)
        return {
            "st_ino": inode,
            "st_mode": mode,
            "st_size": size,
            "st_blocks": -(-size // 512),
            "st_nlink": 1,
            "st_uid": self._uid,
            "st_gid": self._gid,
            "st_atime": stamp,
            "st_mtime": stamp,
            "st_ctime": stamp,
        }


class VersionFolder(Node):
    """The directory of a version (``path`` is ""), or one inside it."""

    def __init__(self, versions: Versions, snapshot: Snapshot, path: str) -> None:
        self._versions = versions
        self._snapshot = snapshot
        self._path = path

    def stat(self) -> Stat:
        manifest = self._snapshot.manifest
        inode = version_inode(manifest.version, self._path)
        return self._versions.stat(inode, FOLDER_MODE, 0, manifest.time)

    def xattrs(self) -> Mapping[str, bytes]:
        return self._snapshot.xattrs()

    def entries(self) -> list[Entry]:
        version = self._snapshot.manifest.version
        inside = f"{self._path}/" if self._path else ""
        return [
            (name, version_inode(version, inside + name), FOLDER_MODE if is_folder else FILE_MODE)
            for name, is_folder in self._snapshot.folders[self._path].items()
        ]


class VersionFile(Node):
    """A file of a version. Its bytes never change."""

    def __init__(self, versions: Versions, snapshot: Snapshot, path: str, file: File) -> None:
        self._versions = versions
        self._snapshot = snapshot
        self._path = path
        self._file = file

    def stat(self) -> Stat:
        manifest = self._snapshot.manifest
        inode = version_inode(manifest.version, self._path)
        return self._versions.stat(inode, FILE_MODE, self._file.layout.size, manifest.time)

    def xattrs(self) -> Mapping[str, bytes]:
        return self._snapshot.xattrs(self._file)

    def open(self, flags: int) -> Handle:
        if flags & _WRITING:
            raise refused(errno.EROFS)
        layout = self._file.layout
        self._versions.hold(self._snapshot.manifest.version)
        return _OpenFile(self._versions, self, self._snapshot.manifest.version, layout)


class _OpenFile(Handle):
    is_immutable = True

    def __init__(self, versions: Versions, file: VersionFile, number: int, layout: Layout) -> None:
        self._versions = versions
        self._number = number
        self._file = file
        self._layout = layout

    def stat(self) -> Stat:
        return self._file.stat()

    def read(self, offset: int, out: memoryview) -> int:
        size = max(0, min(len(out), self._layout.size - offset))
        pieces = list(self._layout.plan(offset, out[:size]))
        if pieces:
            self._versions.guard.read(self._number, pieces)
        return size

    def close(self) -> None:
        self._versions.release(self._number)


class Latest(Node):
    """The symbolic link to the newest version."""

    def __init__(self, versions: Versions) -> None:
        self._versions = versions

    def stat(self) -> Stat:
        newest = self._newest()
        size = len(str(newest.number))
        return self._versions.stat(inode_of("latest"), LINK_MODE, size, newest.time)

    def link_target(self) -> str:
        return str(self._newest().number)

    def _newest(self) -> VersionInfo:
        infos = self._versions.infos()
        if not infos:
            raise refused(errno.ENOENT)
        return infos[-1]


def is_number(name: str) -> bool:
    return _NUMBER.fullmatch(name) is not None


def version_inode(number: int, path: str) -> int:
    return inode_of(("version", number, path))
