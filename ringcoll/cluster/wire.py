"""JSON over a socket, a line for each message. Nothing of it is trusted: lines are bounded, and
what is no object raises TransportError."""

from __future__ import annotations

import json
import socket
from typing import Any

from ringcoll.errors import TransportError

MAX_LINE_BYTES = 64 << 20  # the reports of all ranks in one


class Wire:
    """A connected socket that carries messages. The socket's timeout bounds each wait."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._lines = connection.makefile("rb", buffering=1 << 16)

    def send(self, message: dict[str, Any]) -> None:
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, max_bytes: int = MAX_LINE_BYTES) -> dict[str, Any]:
        """Raises TransportError at the end of the stream, OSError as sockets do."""
        line = self._lines.readline(max_bytes)
        if not line.endswith(b"\n"):
            raise TransportError("the connection ended, or the message is too long")
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise TransportError("what came is no message of ringcoll")
        return message

    def close(self) -> None:
        self._lines.close()
        self.socket.close()
