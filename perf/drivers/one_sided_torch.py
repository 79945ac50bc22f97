"""Reads and writes by torch's RPC over TensorPipe with its defaults: shared memory on one host, TCP
between hosts.

A read returns tensors that torch has made. A write has the owner copy what came to its memory.
"""

from __future__ import annotations

import numpy as np
import one_sided
import torch
import torch.distributed.rpc as rpc

_owned: list[torch.Tensor] = []


def fetch() -> list[torch.Tensor]:
    return _owned


def store(tensors: list[torch.Tensor]) -> None:
    for owned, tensor in zip(_owned, tensors, strict=True):
        owned.copy_(tensor)


class Side:
    def __init__(self, start: one_sided.Start) -> None:
        self.memory = self.local = one_sided.memory(start.most_bytes)
        options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{start.directory}/rpc")
        name = "user" if start.is_user else "owner"
        rpc.init_rpc(name, rank=start.rank, world_size=2, rpc_backend_options=options)

    def tensors(self, way: str, size: int) -> list[torch.Tensor]:
        """One for each piece, each with a storage of its own: torch copies what it sends of a
        larger storage once more."""
        return [torch.from_numpy(self.memory[piece]) for piece in one_sided.pieces(way, size)]

    def close(self) -> None:
        rpc.shutdown(graceful=False)


class Owner(Side):
    def prepare(self, way: str, size: int) -> None:
        _owned[:] = self.tensors(way, size)


class User(Side):
    def __init__(self, start: one_sided.Start) -> None:
        self._tensors: list[torch.Tensor] = []
        self._result: list[torch.Tensor] = []
        super().__init__(start)

    def prepare(self, way: str, size: int) -> None:
        self._tensors, self._result = self.tensors(way, size), []

    def copy(self, way: str, size: int) -> None:
        if one_sided.is_read(way):
            self._result = []  # as a user who needs the memory drops what was read before
            self._result = rpc.rpc_sync("owner", fetch)
        else:
            rpc.rpc_sync("owner", store, args=(self._tensors,))

    def fetch(self, way: str, size: int) -> None:
        for tensor, result in zip(self._tensors, self._result, strict=False):
            np.copyto(tensor.numpy(), result.numpy())


if __name__ == "__main__":
    begun = one_sided.Start()
    one_sided.serve(begun, User(begun) if begun.is_user else Owner(begun))
