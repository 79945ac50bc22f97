"""Keys of MXNet's store, its own or that of ringcoll. A worker waits until a call has ended, also
for other workers.

A push to a dense key is the sum of all workers' arrays, and takes the place of the value. Without
an optimizer, MXNet 1.9.1 stores pushed rows of a sparse key as the first rows of the value. So SGD
runs in the servers once sparse keys are measured, which has to be after dense ones.
"""

from __future__ import annotations

import os
from typing import Any

import mxnet_job
import numpy as np
import tables
from start import Start


class Worker:
    def __init__(self, start: Start) -> None:
        self._workers = start.ranks - start.owners
        self._store = mxnet_job.join(start)
        import mxnet

        self._mx = mxnet
        self._made: set[str] = set()
        self._optimized = False

    def make(self, case: tables.Case) -> None:
        self._case = case
        arrays = self._mx.nd
        if case.ids is None:
            self._values, self._ids = arrays.array(case.values, dtype="float32"), None
            self._out = arrays.zeros(case.values.shape)
            first = arrays.zeros(case.values.shape)
        else:
            self._have_optimizer()
            shape = (case.rows, tables.WIDTH)
            self._ids = arrays.array(case.ids, dtype="int64")
            self._values = arrays.sparse.row_sparse_array((case.values, case.ids), shape=shape)
            self._out = arrays.sparse.zeros("row_sparse", shape)
            first = arrays.ones(shape).tostype("row_sparse")
        if case.name not in self._made:
            self._store.init(case.name, first)
            self._made.add(case.name)

    def _have_optimizer(self) -> None:
        if not self._optimized:
            self._store.set_optimizer(self._mx.optimizer.SGD(learning_rate=1.0))
        self._optimized = True

    def push(self) -> None:
        self._store.push(self._case.name, self._values)
        self._mx.nd.waitall()

    def pull(self) -> None:
        self._start_pull()
        self._mx.nd.waitall()

    def push_pull(self) -> None:
        self._store.push(self._case.name, self._values)
        self._start_pull()
        self._mx.nd.waitall()

    def _start_pull(self) -> None:
        if self._ids is None:
            self._store.pull(self._case.name, out=self._out)
        else:
            self._store.row_sparse_pull(self._case.name, out=self._out, row_ids=self._ids)

    def pulled(self) -> Any:
        if self._ids is not None:
            return np.asarray(self._out.data.asnumpy())
        # MXNet pulls a dense value also to the array that was pushed last.
        self._values[:] = self._mx.nd.array(self._case.values)
        self.push_pull()
        return np.asarray(self._out.asnumpy())

    def expected(self, pushes: int) -> Any:
        if self._ids is None:
            return self._case.values * np.float32(self._workers)
        return np.float32(1) - self._case.values * np.float32(pushes * self._workers)

    def close(self) -> None:
        os._exit(0)


if __name__ == "__main__":
    begun = tables.begin()
    if begun.is_user:
        tables.serve(begun, Worker(begun))
    else:
        mxnet_job.serve(begun)
