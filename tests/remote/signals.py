"""Signals to processes."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path
from typing import Any


def send(process: subprocess.Popen[Any], number: int) -> None:
    """Sends a signal. After SIGSTOP it waits until all threads have stopped: they may go on for a
    while."""
    process.send_signal(number)
    if number != signal.SIGSTOP:
        return
    for status in Path(f"/proc/{process.pid}/task").glob("*/stat"):
        while status.read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.001)
