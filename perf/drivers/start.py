"""How the ranks of a Python driver are started, and how they meet.

A driver is started as `driver.py SOCKET DIRECTORY RANKS MOST_BYTES [word ...]`, once for each rank,
and finds its rank in PERF_RANKS.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

MEETING_S = 60.0


class Start:
    """The command line, and a folder in which the ranks meet. The first `owners` ranks, all but the
    last unless the driver says otherwise, have what the others use."""

    def __init__(self) -> None:
        path, directory, ranks, most, *self.words = sys.argv[1:]
        self.socket, self.directory = path, Path(directory)
        self.ranks, self.most_bytes = int(ranks), int(most)
        self.rank = int(os.environ["PERF_RANKS"])
        self.owners = self.ranks - 1

    @property
    def is_user(self) -> bool:
        return self.rank >= self.owners

    def publish(self, name: str, content: bytes) -> None:
        path = self.directory / name
        path.with_suffix(".new").write_bytes(content)
        path.with_suffix(".new").rename(path)

    def expect(self, name: str) -> bytes:
        end = time.monotonic() + MEETING_S
        while not (self.directory / name).exists():
            if time.monotonic() > end:
                raise TimeoutError(f"no {name} within {MEETING_S:.0f} s")
            time.sleep(0.01)
        return (self.directory / name).read_bytes()

    @property
    def address(self) -> str:
        """Where the other ranks reach this one: the harness names the host's address, if any."""
        return os.environ.get("PERF_ADDRESS", "127.0.0.1")

    def free_port(self) -> int:
        with socket.socket() as probe:
            probe.bind((self.address, 0))
            return int(probe.getsockname()[1])
