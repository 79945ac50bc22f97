"""Files in directories that other users may be able to write to.

A name there may be a symbolic link, or belong to another user's file. These functions do not write
to such files, do not follow such links, and do not trust their content.
"""

from __future__ import annotations

import os
import pwd
import secrets
import stat
from pathlib import Path

from ringcoll.errors import InvalidArgument

_PRIVATE = 0o600
# Opening does not follow a symbolic link, and does not block on a FIFO.
_CAREFULLY = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def make_file(folder: Path, prefix: str, content: bytes, mode: int = _PRIVATE) -> Path:
    """Writes a new file with a random name, and returns its path. Raises OSError, and then leaves
    no file."""
    path = folder / f"{prefix}{secrets.token_hex(16)}"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return path


def replace_file(path: Path, content: bytes) -> None:
    """Replaces or makes a file in one step. Raises OSError."""
    fresh = make_file(path.parent, f".{path.name}.", content, mode=0o666)
    try:
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise


def user_of_new_files(folder: Path) -> int:
    """The user id that files of this process get in ``folder``. A server may map users (NFS).
    Raises OSError if no file can be made there."""
    path = make_file(folder, ".ringcoll.", b"")
    user = path.lstat().st_uid
    path.unlink()
    return user


def is_of(user: int, path: Path) -> bool:
    """Whether ``path`` is a regular file of ``user``."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_uid == user


def read_file_of(user: int, path: Path) -> bytes:
    """Reads a regular file of ``user``. Raises InvalidArgument if ``path`` is anything else, and
    OSError."""
    try:
        descriptor = os.open(path, _CAREFULLY)
    except FileNotFoundError:
        raise
    except OSError:
        _refuse_unless(path.lstat(), user, path)
        raise
    with open(descriptor, "rb") as file:
        _refuse_unless(os.fstat(descriptor), user, path)
        return file.read()


def _refuse_unless(found: os.stat_result, user: int, path: Path) -> None:
    if stat.S_ISREG(found.st_mode) and found.st_uid == user:
        return
    kind = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "a file"
    if not (stat.S_ISLNK(found.st_mode) or stat.S_ISREG(found.st_mode)):
        kind = "no regular file"
    raise InvalidArgument(
        f"{path} is {kind} of user {_describe(found.st_uid)}, and this process is of user "
        f"{_describe(user)}: run all ranks as one user, remove it, or choose another directory"
    )


def _describe(user: int) -> str:
    try:
        return f"{pwd.getpwuid(user).pw_name} (uid {user})"
    except KeyError:
        return f"uid {user}"
