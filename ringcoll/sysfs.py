"""What the kernel tells in files."""

from __future__ import annotations

from pathlib import Path


def read_value(path: str | Path) -> str:
    """Empty where there is no such file, or its driver does not know."""
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
