"""Finds the Horovod that is installed for this Python, and whether it has the backend."""

from __future__ import annotations

import importlib.metadata
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Installed:
    version: str
    has_backend: bool
    build_key: str  # "" if `ringcoll horovod build` has not built it


def find_installed() -> Installed | None:
    """The installed Horovod, or None. Does not import it, which would load its frameworks."""
    try:
        distribution = importlib.metadata.distribution("horovod")
    except importlib.metadata.PackageNotFoundError:
        return None
    build_file = distribution.locate_file("horovod/common/ringcoll_build.py")
    try:
        with open(str(build_file), encoding="utf-8") as file:
            key = re.search(r'^KEY = "(\w+)"$', file.read(), re.MULTILINE)
    except OSError:
        key = None
    return Installed(distribution.version, key is not None, key.group(1) if key else "")
