"""The log of the Python side: the logger "ringcoll".

A program that sets up Python's logging gets the records in its own way. Otherwise they are lines on
standard error like those of the core, such as "[ringcoll] warning: …". RINGCOLL_LOG is the least
severe level.
"""

from __future__ import annotations

import logging
import os
import sys

log = logging.getLogger("ringcoll")

_LEVELS = {
    "error": logging.ERROR,
    "warning": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
}


class _Lines(logging.Handler):
    """Writes the lines, unless the program has handlers of its own."""

    def emit(self, record: logging.LogRecord) -> None:
        if logging.getLogger().handlers or log.handlers != [self]:
            return
        try:
            level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
            sys.stderr.write(f"[ringcoll] {level}{self.format(record)}\n")
        except Exception:
            self.handleError(record)


log.addHandler(_Lines())
log.setLevel(_LEVELS.get(os.environ.get("RINGCOLL_LOG", ""), logging.NOTSET))
