"""Values that the kernel publishes in files."""

from __future__ import annotations

from pathlib import Path


def read_value(path: str | Path) -> str:
    """The content of a file. Empty if it does not exist, or if its driver cannot read the value."""
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
