"""Reads and writes by torch's RPC over TensorPipe with its defaults: shared memory on one host, TCP
between hosts.

A read returns a tensor that torch has made. A write has the owner copy what came to its memory.
"""

from __future__ import annotations

import numpy as np
import one_sided
import torch
import torch.distributed.rpc as rpc

_memory = torch.zeros(0, dtype=torch.uint8)


def fetch(size: int) -> torch.Tensor:
    return _memory[:size]


def store(tensor: torch.Tensor) -> None:
    _memory[: tensor.numel()].copy_(tensor)


class Side:
    def __init__(self, start: one_sided.Start) -> None:
        options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{start.directory}/rpc")
        name = "user" if start.is_user else "owner"
        rpc.init_rpc(name, rank=start.rank, world_size=2, rpc_backend_options=options)

    def close(self) -> None:
        rpc.shutdown(graceful=False)


class Owner(Side):
    def __init__(self, start: one_sided.Start) -> None:
        global _memory
        _memory = torch.zeros(start.most_bytes, dtype=torch.uint8)
        self.memory = _memory.numpy()
        super().__init__(start)


class User(Side):
    def __init__(self, start: one_sided.Start) -> None:
        self._tensor = torch.zeros(start.most_bytes, dtype=torch.uint8)
        self._result = torch.zeros(0, dtype=torch.uint8)
        self.local = self._tensor.numpy()
        super().__init__(start)

    def copy(self, way: str, size: int) -> None:
        if way == "read":
            self._result = rpc.rpc_sync("owner", fetch, args=(size,))
        else:
            rpc.rpc_sync("owner", store, args=(self._tensor[:size],))

    def fetch(self, way: str, size: int) -> None:
        if way == "read":
            np.copyto(self.local[:size], self._result.numpy())


if __name__ == "__main__":
    begun = one_sided.Start()
    one_sided.serve(begun, User(begun) if begun.is_user else Owner(begun))
