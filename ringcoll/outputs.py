"""Files that commands write: seen to be possible before the work, whole or not at all after it.
Earlier ones are overwritten. Pictures need matplotlib, which only they import."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ringcoll.errors import Error, InvalidArgument

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def check_file(option: str, path: Path) -> None:
    """Raises InvalidArgument if no file can be written there."""
    try:
        if path.is_dir():
            raise IsADirectoryError("it is a directory")
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        why = error.strerror or str(error)
        raise InvalidArgument(f"{option} {path}: cannot be written: {why}") from None


def check_picture(option: str, path: Path) -> None:
    """The same for a picture. Raises Error if there is no matplotlib."""
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError:
        raise Error(f"{option} needs matplotlib: pip install matplotlib") from None
    matplotlib.use("Agg")
    kinds = FigureCanvasAgg.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in kinds:
        raise InvalidArgument(f"{option} {path}: its name is to end in one of {', '.join(kinds)}")
    check_file(option, path)


def write_file(option: str, path: Path, content: bytes) -> None:
    """Raises InvalidArgument if it cannot."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.write_bytes(content)
        fresh.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise InvalidArgument(f"{option} {path}: {error.strerror}") from None


def write_picture(option: str, path: Path, figure: Figure) -> None:
    content = io.BytesIO()
    figure.savefig(content, format=path.suffix.removeprefix(".").lower())
    write_file(option, path, content.getvalue())
