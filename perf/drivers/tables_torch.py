"""Tables by torch's RPC over TensorPipe with its defaults: servers add what they are sent to a
tensor of theirs, and answer with it or with rows of it.

Torch leaves it to its user which server has what. A pull returns tensors that torch has made, one
of each server.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tables
import torch
import torch.distributed.rpc as rpc
from start import Start

_tables: dict[str, torch.Tensor] = {}


def make(name: str, shape: list[int]) -> None:
    if name not in _tables:
        _tables[name] = torch.zeros(shape)


def push(name: str, ids: torch.Tensor | None, values: torch.Tensor) -> None:
    if ids is None:
        _tables[name] += values
    else:
        _tables[name].index_add_(0, ids, values)


def pull(name: str, ids: torch.Tensor | None) -> torch.Tensor:
    return _tables[name] if ids is None else _tables[name][ids]


def push_pull(name: str, ids: torch.Tensor | None, values: torch.Tensor) -> torch.Tensor:
    push(name, ids, values)
    return pull(name, ids)


class Rank:
    def __init__(self, start: Start) -> None:
        self._servers, self._workers = start.owners, start.ranks - start.owners
        self._parts: list[tuple[torch.Tensor | None, torch.Tensor, Any]] = []
        self._result: list[torch.Tensor] = []
        rpc.init_rpc(
            f"rank{start.rank}",
            rank=start.rank,
            world_size=start.ranks,
            rpc_backend_options=rpc.TensorPipeRpcBackendOptions(
                init_method=f"file://{start.directory}/rpc"
            ),
        )

    def _ask(self, function: Any, arguments: list[tuple[Any, ...]]) -> list[Any]:
        """The answers of all servers."""
        asked = [
            rpc.rpc_async(f"rank{server}", function, args=(self._name, *words))
            for server, words in enumerate(arguments)
        ]
        return [each.wait() for each in asked]

    def make(self, case: tables.Case) -> None:
        self._name, self._case = case.name, case
        self._parts, self._result, shapes = [], [], []
        for server in range(self._servers):
            rows, ids, which = case.of_server(server, self._servers)
            # Torch copies what it sends of a larger storage once more.
            values = torch.from_numpy(case.values[which])
            self._parts.append((None if ids is None else torch.from_numpy(ids), values, which))
            shapes.append(([rows, *case.values.shape[1:]],))
        self._ask(make, shapes)

    def push(self) -> None:
        self._ask(push, [(ids, values) for ids, values, _ in self._parts])

    def pull(self) -> None:
        self._result = []  # as a user who needs the memory drops what was pulled before
        self._result = self._ask(pull, [(ids,) for ids, _, _ in self._parts])

    def push_pull(self) -> None:
        self._result = []
        self._result = self._ask(push_pull, [(ids, values) for ids, values, _ in self._parts])

    def pulled(self) -> Any:
        for (_, _, which), tensor in zip(self._parts, self._result, strict=True):
            self._case.out[which] = tensor.numpy()
        return np.asarray(self._case.out)

    def expected(self, pushes: int) -> Any:
        return self._case.values * np.float32(pushes * self._workers)

    def close(self) -> None:
        rpc.shutdown(graceful=False)


if __name__ == "__main__":
    begun = tables.begin()
    tables.serve(begun, Rank(begun))
