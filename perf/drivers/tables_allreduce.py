"""What takes the place of a push and a pull without servers: ringcoll's allreduce of the bytes.

The workers take part or, if there is one alone, it and the servers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tables
from start import Start

import ringcoll


class Member:
    """A rank of the allreduce."""

    def __init__(self, start: Start, first: int) -> None:
        meeting = f"file://{start.directory}"
        self._world = ringcoll.init(start.rank - first, start.ranks - first, meeting)

    def make(self, case: tables.Case) -> None:
        self._case = case

    def push_pull(self) -> None:
        self._world.allreduce(self._case.values, out=self._case.out)

    push = pull = push_pull

    def pulled(self) -> Any:
        return self._case.out

    def expected(self, pushes: int) -> Any:
        return self._case.values * np.float32(self._world.size)

    def close(self) -> None:
        self._world.close()


class Idle:
    def close(self) -> None:
        pass


if __name__ == "__main__":
    begun = tables.begin()
    if begun.ranks == begun.owners + 1:
        begun.owners = 0  # all take part, and are timed
    tables.serve(begun, Member(begun, begun.owners) if begun.is_user else Idle())
