"""The top directory: versions, ``latest``, ``staging``; and the rename that commits."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import stat
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from ringcoll.errors import InvalidArgument
from ringcoll.weights.fuse import renaming
from ringcoll.weights.fuse.nodes import (
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
from ringcoll.weights.fuse.spool import Spool
from ringcoll.weights.fuse.staging import Key, StagedNode, Staging, files_below, key_of
from ringcoll.weights.fuse.versions import XATTR, Latest, VersionFolder, Versions
from ringcoll.weights.incoming import Incoming

log = logging.getLogger("ringcoll.mount")

STAGING = "staging"
LATEST = "latest"
# How many commits `user.ringcoll.committed.NAME` remembers.
_REMEMBERED = 64
_NUMBER = re.compile(r"0|[1-9][0-9]*")
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class Root(Node):
    """The top directory."""

    attr_s = SHORTLY_S

    def __init__(self, versions: Versions, spool: Spool) -> None:
        super().__init__("root")
        self._versions = versions
        self._spool = spool
        self._staging = Staging()
        self._committed: OrderedDict[str, int] = OrderedDict()
        top = os.fstat(spool.files)
        self._top_key = key_of(top)
        self._top_entry = STAGING, top.st_ino, top.st_mode

    def attr(self, handle: Handle | None = None) -> Attr:
        # The mounting user may rename into it.
        return self._versions.attr(inode_of(self.key), stat.S_IFDIR | 0o755, 0, 0)

    def xattrs(self) -> Mapping[str, bytes]:
        return {
            f"{XATTR}committed.{name}": str(version).encode()
            for name, version in list(self._committed.items())
        }

    def lookup(self, name: str) -> Node:
        if name == STAGING:
            return StagedNode(self._staging, os.dup(self._spool.files))
        if name == LATEST:
            return Latest(self._versions)
        if _NUMBER.fullmatch(name) and self._is_there(int(name)):
            return VersionFolder(self._versions, int(name))
        raise refused(errno.ENOENT)

    def entries(self) -> list[Entry]:
        infos = self._versions.infos()
        found = [
            (str(info.number), inode_of(("version", info.number, "")), FOLDER_MODE)
            for info in infos
        ]
        if infos:
            found.append((LATEST, inode_of("latest"), LINK_MODE))
        return [*found, self._top_entry]

    def open(self, flags: int) -> Handle:
        return FolderHandle(self)

    def rename(self, old: Node, name: str, new: Node, target: str, flags: int) -> None:
        """Renames inside the staging area, or commits: from there to a new name in the root."""
        if not isinstance(old, StagedNode):
            raise refused(errno.EROFS)
        if isinstance(new, StagedNode):
            self._rename_staged(old, name, new, target, flags)
        elif new is self:
            if flags & ~renaming.NOREPLACE:
                raise refused(errno.EINVAL)
            self._commit(old, name, target)
        else:
            raise refused(errno.EROFS)

    def _is_there(self, number: int) -> bool:
        return any(info.number == number for info in self._versions.infos())

    def _rename_staged(
        self, old: StagedNode, name: str, new: StagedNode, target: str, flags: int
    ) -> None:
        moved = key_of(os.stat(name, dir_fd=old.descriptor, follow_symlinks=False))
        replaced = None
        with contextlib.suppress(FileNotFoundError):
            replaced = key_of(os.stat(target, dir_fd=new.descriptor, follow_symlinks=False))
        keys = {old.staged_key, new.staged_key, moved, replaced or moved}
        with self._staging.changing(*keys):
            renaming.rename(old.descriptor, name, new.descriptor, target, flags)
        # With RENAME_EXCHANGE (2) both go on.
        if replaced and replaced != moved and not flags & ~renaming.NOREPLACE:
            self._staging.drop(replaced)

    def _commit(self, old: StagedNode, name: str, target: str) -> None:
        if target in (STAGING, LATEST):
            raise refused(errno.EEXIST)
        if _NUMBER.fullmatch(target):
            there = self._is_there(int(target))
            log.error("rename to %s: the store chooses the number of a version", target)
            raise refused(errno.EEXIST if there else errno.EINVAL)
        top = key_of(os.stat(name, dir_fd=old.descriptor, follow_symlinks=False))
        with self._staging.sealing(old.descriptor, name) as sealed:
            files = files_below(old.descriptor, name)
            self._note_error(top, None)
            try:
                version = self._send(old.descriptor, name, top, files)
            except (OSError, InvalidArgument) as error:
                log.error("commit of %s: %s", name, error)
                self._note_error(top, str(error))
                raise error if isinstance(error, OSError) else refused(errno.EINVAL) from error
            self._committed[target] = version
            while len(self._committed) > _REMEMBERED:
                self._committed.popitem(last=False)
            try:
                self._spool.discard(old.descriptor, name)
            except OSError as error:
                log.error("%s is committed, and cannot be removed: %s", name, error)
        for key in sealed:
            self._staging.drop(key)
        log.info("%s is version %d", target, version)

    def _send(self, folder: int, name: str, top: Key, files: list[tuple[Key, str]]) -> int:
        incoming = Incoming()
        try:
            is_folder = stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
            for key, path in files:
                inside = f"{name}/{path}" if is_folder else path
                file = os.fdopen(os.open(inside, _READ, dir_fd=folder), "rb")
                true = self._staging.xattrs(key).get(f"{XATTR}dtype")
                incoming.add_file(path, file, true.decode(errors="replace") if true else None)
            incoming.metadata |= self._metadata(top)
            incoming.check()
            tensors = list(incoming.tensors.values())
            return self._versions.guard.commit(tensors, incoming.metadata)
        finally:
            incoming.close()

    def _metadata(self, key: Key) -> dict[str, Any]:
        """The metadata that the extended attributes of what is committed say."""
        found = self._staging.xattrs(key)
        metadata: dict[str, Any] = {}
        try:
            if text := found.get(f"{XATTR}metadata"):
                metadata = json.loads(text)
                if not isinstance(metadata, dict):
                    raise ValueError
            if text := found.get(f"{XATTR}step"):
                metadata["step"] = int(text)
        except (ValueError, RecursionError):
            raise InvalidArgument(
                "user.ringcoll.metadata must be a JSON object, and user.ringcoll.step a number"
            ) from None
        return metadata

    def _note_error(self, key: Key, text: str | None) -> None:
        name = f"{XATTR}error"
        with contextlib.suppress(OSError):
            if text is None:
                self._staging.remove_xattr(key, name)
            else:
                self._staging.set_xattr(key, name, text.encode(errors="backslashreplace")[:4096])
