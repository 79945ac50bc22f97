"""The limit of copies on one host: memcpy between two buffers of the user. The owner does nothing.

NumPy's copy of contiguous bytes is a memcpy.
"""

from __future__ import annotations

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

    def prepare(self, way: str, size: int) -> None:
        self._other[:size] = one_sided.pattern(way, size)

    def fetch(self, way: str, size: int) -> None:
        """A write is a copy like a read, and only that of a read is compared."""
        if way == "write":
            self.copy("read", size)

    def copy(self, way: str, size: int) -> None:
        if way == "read":
            np.copyto(self.local[:size], self._other[:size])
        else:
            np.copyto(self._other[:size], self.local[:size])

    def close(self) -> None:
        pass


if __name__ == "__main__":
    begun = one_sided.Start()
    one_sided.serve(begun, Copier(begun.most_bytes) if begun.is_user else Idle())
