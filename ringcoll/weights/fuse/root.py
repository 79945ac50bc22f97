"""The top directory: versions, ``latest`` and ``staging``."""

from __future__ import annotations

import errno
import logging
import stat
from collections.abc import Mapping

from ringcoll.weights.fuse.commits import Commits
from ringcoll.weights.fuse.nodes import FOLDER_MODE, LINK_MODE, Entry, Node, Stat, inode_of, refused
from ringcoll.weights.fuse.spool import Spool
from ringcoll.weights.fuse.versions import XATTR, Versions, is_number, version_inode

log = logging.getLogger("ringcoll.mount")

STAGING = "staging"
LATEST = "latest"


class Root(Node):
    """The top directory."""

    def __init__(self, versions: Versions, spool: Spool, commits: Commits) -> None:
        self._versions = versions
        self._commits = commits
        top = spool.files.stat()
        self._top_entry = STAGING, top.st_ino, top.st_mode

    def stat(self) -> Stat:
        # The mounting user may rename into it.
        return self._versions.stat(inode_of("root"), stat.S_IFDIR | 0o755, 0, 0)

    def xattrs(self) -> Mapping[str, bytes]:
        return {
            f"{XATTR}committed.{name}": str(version).encode()
            for name, version in self._commits.remembered()
        }

    def entries(self) -> list[Entry]:
        infos = self._versions.infos()
        found = [(str(info.number), version_inode(info.number, ""), FOLDER_MODE) for info in infos]
        if infos:
            found.append((LATEST, inode_of("latest"), LINK_MODE))
        return [*found, self._top_entry]

    def check_target(self, name: str) -> None:
        """Raises OSError if a commit cannot have this name."""
        if name in (STAGING, LATEST):
            raise refused(errno.EEXIST)
        if is_number(name):
            log.error("rename to %s: the store chooses the number of a version", name)
            raise refused(errno.EEXIST if self._versions.has(int(name)) else errno.EINVAL)
