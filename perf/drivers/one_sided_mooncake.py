"""One-sided copies by Mooncake's transfer engine over TCP, without a metadata server."""

from __future__ import annotations

import json

import one_sided
from mooncake.engine import TransferEngine


class Side:
    def __init__(self, start: one_sided.Start) -> None:
        self.engine = TransferEngine()
        if self.engine.initialize(start.address, "P2PHANDSHAKE", "tcp", ""):
            raise RuntimeError("initialize failed")
        self.memory = self.local = one_sided.memory(start.most_bytes)
        if self.engine.register_memory(self.base, start.most_bytes):
            raise RuntimeError("register_memory failed")

    @property
    def base(self) -> int:
        return int(self.memory.ctypes.data)

    def close(self) -> None:
        self.engine.unregister_memory(self.base)


class Owner(Side):
    def __init__(self, start: one_sided.Start) -> None:
        super().__init__(start)
        segment = f"{start.address}:{self.engine.get_rpc_port()}"
        start.publish("owner", json.dumps({"segment": segment, "base": self.base}).encode())


class User(Side):
    def __init__(self, start: one_sided.Start) -> None:
        super().__init__(start)
        found = json.loads(start.expect("owner"))
        self._segment, self._there = found["segment"], found["base"]
        self._here_there_sizes: list[list[int]] = []

    def prepare(self, way: str, size: int) -> None:
        found = one_sided.pieces(way, size)
        here, there = ([base + piece.start for piece in found] for base in (self.base, self._there))
        self._here_there_sizes = [here, there, [piece.stop - piece.start for piece in found]]

    def copy(self, way: str, size: int) -> None:
        engine = self.engine
        if way == "read":
            status = engine.transfer_sync_read(self._segment, self.base, self._there, size)
        elif way == "write":
            status = engine.transfer_sync_write(self._segment, self.base, self._there, size)
        else:
            status = engine.batch_transfer_sync_read(self._segment, *self._here_there_sizes)
        if status:
            raise RuntimeError(f"{way} of {size} bytes: {status}")


if __name__ == "__main__":
    begun = one_sided.Start()
    one_sided.serve(begun, User(begun) if begun.is_user else Owner(begun))
