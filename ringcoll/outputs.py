"""Files that commands write: seen to be possible before the work (check_…), whole or not at all
after it (write_…). Earlier ones are replaced, and links to them followed. Pictures need matplotlib,
which nothing imports without them."""

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
    """Raises InvalidArgument if no file can be written there. What is no regular file, such as
    /dev/stdout, is not replaced by one."""
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
    """The same for a picture. Raises Error if there is no matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError:
        raise Error(f"{option} needs matplotlib: pip install 'ringcoll[plots]'") from None
    kinds = FigureCanvasAgg.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in kinds:
        raise InvalidArgument(f"{option} {path}: its name is to end in one of {', '.join(kinds)}")
    check_file(option, path)


def write_file(option: str, path: Path, content: bytes) -> None:
    """Raises InvalidArgument if it cannot."""
    try:
        replace_file(path.resolve(), content)
    except OSError as error:
        raise InvalidArgument(f"{option} {path}: {error.strerror}") from None


def write_picture(option: str, path: Path, figure: Figure) -> None:
    content = io.BytesIO()
    figure.savefig(content, format=path.suffix.removeprefix(".").lower())
    write_file(option, path, content.getvalue())
