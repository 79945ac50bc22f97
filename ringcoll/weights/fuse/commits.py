"""Commits: what is renamed from the staging area into the root goes to the store."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
from collections import OrderedDict
from pathlib import Path
from typing import Any

from ringcoll.errors import InvalidArgument
from ringcoll.weights.fuse.guard import Guard
from ringcoll.weights.fuse.nodes import refused
from ringcoll.weights.fuse.spool import Spool
from ringcoll.weights.fuse.staging import Key, Staging, files_below, key_of
from ringcoll.weights.fuse.versions import XATTR
from ringcoll.weights.incoming import Incoming

log = logging.getLogger("ringcoll.mount")

# How many commits `user.ringcoll.committed.NAME` remembers.
_REMEMBERED = 64
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class Commits:
    """Makes commits of the staging area, and remembers the versions of the last ones."""

    def __init__(self, guard: Guard, staging: Staging, spool: Spool) -> None:
        self._guard = guard
        self._staging = staging
        self._spool = spool
        self._done: OrderedDict[str, int] = OrderedDict()

    def remembered(self) -> list[tuple[str, int]]:
        """Names that were committed, and their versions."""
        return list(self._done.items())

    def commit(self, path: Path, target: str) -> None:
        """Commits a file or directory of the staging area under a name, and removes it. Raises
        OSError, and then an extended attribute of what is at ``path`` says why.

        libfuse locks the path meanwhile: who asks for a path in it waits for the commit's end.
        What needs no path, such as dirty pages of a mapped file, is refused."""
        top = key_of(path.lstat())
        with self._staging.sealing(path) as sealed:
            self._note_error(top, None)
            try:
                version = self._send(path, top)
            except (OSError, InvalidArgument) as error:
                log.error("commit of %s: %s", path.name, error)
                self._note_error(top, str(error))
                raise error if isinstance(error, OSError) else refused(errno.EINVAL) from error
            self._done[target] = version
            while len(self._done) > _REMEMBERED:
                self._done.popitem(last=False)
            try:
                self._spool.discard(path)
            except OSError as error:
                log.error("%s is committed, and cannot be removed: %s", path, error)
        for key in sealed:
            self._staging.drop(key)
        log.info("%s is version %d", target, version)

    def _send(self, path: Path, top: Key) -> int:
        incoming = Incoming()
        try:
            folder = path if path.is_dir() else path.parent
            for key, inside in files_below(path):
                file = os.fdopen(os.open(folder / inside, _READ), "rb")
                true = self._staging.xattrs(key).get(f"{XATTR}dtype")
                incoming.add_file(inside, file, true.decode(errors="replace") if true else None)
            incoming.metadata |= self._metadata(top)
            incoming.check()
            tensors = list(incoming.tensors.values())
            return self._guard.commit(tensors, incoming.metadata)
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
