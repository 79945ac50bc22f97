"""The Python half of bench.h: a rank that serves the harness over its UNIX socket."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from typing import NoReturn

Handler = Callable[[list[str]], str]


class Harness:
    """The connection to the harness. Between commands the rank sleeps in recv()."""

    def __init__(self, path: str, rank: int) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(path)
        self._lines = self._socket.makefile("r", encoding="ascii")
        self._send(f"hello {rank}")

    def serve(self, handlers: dict[str, Handler]) -> None:
        """Answers commands with what their handler returns, until the harness says quit. What a
        handler raises ends the rank, and the harness is told."""
        for line in self._lines:
            command, *arguments = line.split()
            if command == "quit":
                return
            try:
                answer = handlers[command](arguments)
            except Exception as error:
                self.fail(f"{type(error).__name__}: {error}")
            self._send(answer)

    def fail(self, reason: str) -> NoReturn:
        self._send("error " + " ".join(reason.split()))
        sys.exit(reason)

    def _send(self, line: str) -> None:
        self._socket.sendall((line + "\n").encode("ascii", "replace"))


def times_line(seconds: list[float]) -> str:
    return "times " + " ".join(f"{s:.9f}" for s in seconds)


def peak_resident_kib() -> int:
    """The peak since the last call, which then starts again at what is resident now."""
    with open("/proc/self/status", encoding="ascii") as status:
        peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    with open("/proc/self/clear_refs", "w", encoding="ascii") as reset:
        reset.write("5")
    return peak
