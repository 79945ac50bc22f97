"""Parameter tables of ringcoll: servers are the ranks of a store, and workers are its guests.

Words: how many backups each shard has; then a transport, "tcp" or "verbs", if all are to take each
other for another host's, so that bytes go by that.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import tables
from start import Start

import ringcoll

_NAME, _KEY = "perf", "key"


class Server:
    def __init__(self, start: Start) -> None:
        meeting = f"file://{start.directory}"
        self._world = ringcoll.init(start.rank, start.owners, meeting)
        replicas = int(start.words[0])
        self._store = ringcoll.Store(_NAME, self._world, key=_KEY, replicas=replicas)
        if start.rank == 0:
            start.publish("store", self._store.address.encode())

    def close(self) -> None:
        self._store.close()
        self._world.close()


class Worker:
    def __init__(self, start: Start) -> None:
        self._workers = start.ranks - start.owners
        self._guest = ringcoll.connect(start.expect("store").decode(), key=_KEY)
        self._store = ringcoll.Store(_NAME, self._guest)

    def make(self, case: tables.Case) -> None:
        self._case = case
        shape = {"shape": case.rows} if case.ids is None else {"row_shape": tables.WIDTH}
        self._table = self._store.table(case.name, rule=ringcoll.rules.Sum(), **shape)

    def push(self) -> None:
        self._table.push(self._case.ids, self._case.values)

    def pull(self) -> None:
        self._table.pull(self._case.ids, self._case.out)

    def push_pull(self) -> None:
        self._table.push_pull(self._case.ids, self._case.values, self._case.out)

    def pulled(self) -> Any:
        return self._case.out

    def expected(self, pushes: int) -> Any:
        return self._case.values * np.float32(pushes * self._workers)

    def close(self) -> None:
        self._store.close()
        self._guest.close()


if __name__ == "__main__":
    begun = tables.begin()
    for transport in begun.words[1:]:
        os.environ["RINGCOLL_HOSTID"] = f"host{begun.rank}"
        os.environ["RINGCOLL_TRANSPORT"] = transport
    tables.serve(begun, Worker(begun) if begun.is_user else Server(begun))
