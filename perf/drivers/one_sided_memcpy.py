"""The limit of copies on one host: memcpy between two buffers of the user. The owner does nothing.

NumPy's copy of contiguous bytes is a memcpy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import one_sided


class Idle:
    memory = None

    def close(self) -> None:
        pass


class Copier:
    def __init__(self, most_bytes: int) -> None:
        self.local = one_sided.memory(most_bytes)
        self._other = one_sided.memory(most_bytes)
        self._copies: list[tuple[Any, Any]] = []

    def prepare(self, way: str, size: int) -> None:
        one_sided.fill(self._other[:size], way)
        there, here = self._other, self.local
        source, out = (there, here) if one_sided.is_read(way) else (here, there)
        self._copies = [(out[piece], source[piece]) for piece in one_sided.pieces(way, size)]

    def fetch(self, way: str, size: int) -> None:
        """A write is a copy like a read, and only that of a read is compared."""
        if not one_sided.is_read(way):
            np.copyto(self.local[:size], self._other[:size])

    def copy(self, way: str, size: int) -> None:
        for out, source in self._copies:
            np.copyto(out, source)

    def close(self) -> None:
        pass


if __name__ == "__main__":
    begun = one_sided.Start()
    one_sided.serve(begun, Copier(begun.most_bytes) if begun.is_user else Idle())
