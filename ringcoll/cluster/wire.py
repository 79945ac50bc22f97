"""JSON messages over a socket, one line each. The peer is not trusted: the length of lines is
bounded, and anything but an object raises TransportError."""

from __future__ import annotations

import json
import socket
from typing import Any

from ringcoll.errors import TransportError

MAX_LINE_BYTES = 64 << 20  # enough for the reports of all ranks


class Wire:
    """Sends and receives messages over a connected socket. The socket's timeout limits each
    wait."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._lines = connection.makefile("rb", buffering=1 << 16)

    def send(self, message: dict[str, Any]) -> None:
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, max_bytes: int = MAX_LINE_BYTES) -> dict[str, Any]:
        """Waits for a message. Raises TransportError at the end of the stream, and OSError as
        sockets do."""
        line = self._lines.readline(max_bytes)
        if not line.endswith(b"\n"):
            raise TransportError("the connection ended, or the message is too long")
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise TransportError("the data received is no message of ringcoll")
        return message

    def close(self) -> None:
        self._lines.close()
        self.socket.close()
