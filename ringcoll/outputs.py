"""Output files of commands.

check_…() tests before the work that a file can be written. write_…() writes it after the work,
whole or not at all. An existing file is replaced; a symbolic link is followed. Only pictures import
matplotlib.
"""

from __future__ import annotations

import contextlib
import io
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ringcoll.errors import Error, InvalidArgument
from ringcoll.files import replace_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def check_file(option: str, path: Path) -> None:
    """Raises InvalidArgument if no file can be written to ``path``, or if ``path`` exists and is
    not a regular file, such as /dev/stdout. ``option`` names it in the error."""
    try:
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISREG(path.stat().st_mode):
                raise OSError("it is no regular file")
        with tempfile.TemporaryFile(dir=path.resolve().parent):
            pass
    except OSError as error:
        why = error.strerror or str(error)
        raise InvalidArgument(f"{option} {path}: cannot be written: {why}") from None


def check_picture(option: str, path: Path) -> None:
    """Like check_file(), for a picture. Raises Error if matplotlib is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError:
        raise Error(f"{option} needs matplotlib: pip install 'ringcoll[plots]'") from None
    kinds = FigureCanvasAgg.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in kinds:
        raise InvalidArgument(f"{option} {path}: its name must end in one of {', '.join(kinds)}")
    check_file(option, path)


def write_file(option: str, path: Path, content: bytes) -> None:
    """Writes or replaces the file. Raises InvalidArgument if that fails."""
    try:
        replace_file(path.resolve(), content)
    except OSError as error:
        raise InvalidArgument(f"{option} {path}: {error.strerror}") from None


def write_picture(option: str, path: Path, figure: Figure) -> None:
    content = io.BytesIO()
    figure.savefig(content, format=path.suffix.removeprefix(".").lower())
    write_file(option, path, content.getvalue())
