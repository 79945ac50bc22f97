"""The real directory behind ``/staging``, which lives as long as its server."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "ringcoll-staging-"
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MEMORY = Path("/dev/shm")


def default_parent() -> Path:
    """Memory where the system has a tmpfs, since weights are large and soon committed."""
    return _MEMORY if os.access(_MEMORY, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())


class Spool:
    """A private directory. A lock says that its server lives. The next server removes those of
    killed ones of the same user."""

    def __init__(self, parent: Path) -> None:
        _remove_leftovers(parent)
        self._path, self._lock = _make(parent)
        self.files = self._make_folder("files", 0o755)
        self._trash = self._make_folder("trash", 0o700)

    def discard(self, path: Path) -> None:
        """Removes a file or directory, in one step for those who look. Open files stay."""
        gone = self._trash / secrets.token_hex(8)
        path.rename(gone)
        if gone.is_dir() and not gone.is_symlink():
            shutil.rmtree(gone, ignore_errors=True)
        else:
            gone.unlink()

    def close(self) -> None:
        shutil.rmtree(self._path, ignore_errors=True)
        os.close(self._lock)

    def _make_folder(self, name: str, mode: int) -> Path:
        path = self._path / name
        path.mkdir()
        path.chmod(mode)
        return path


def _make(parent: Path) -> tuple[Path, int]:
    while True:
        path = parent / f"{_PREFIX}{os.getuid()}-{secrets.token_hex(8)}"
        path.mkdir(mode=0o700)
        descriptor = os.open(path, _OPEN)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        # Another server may have taken it for a leftover before it was locked.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(path.stat(), os.fstat(descriptor)):
                return path, descriptor
        os.close(descriptor)


def _remove_leftovers(parent: Path) -> None:
    for path in parent.glob(f"{_PREFIX}{os.getuid()}-*"):
        with _locked_if_free(path) as is_free:
            if is_free:
                shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _locked_if_free(path: Path) -> Iterator[bool]:
    try:
        descriptor = os.open(path, _OPEN)
    except OSError:
        yield False
        return
    try:
        mine = os.fstat(descriptor).st_uid == os.getuid()
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        mine = False
    try:
        yield mine
    finally:
        os.close(descriptor)
