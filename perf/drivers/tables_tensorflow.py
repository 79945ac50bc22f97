"""Tables as variables on TensorFlow servers by gRPC, as ParameterServerStrategy has them: functions
of the worker that add to variables of the parameter servers and read them.

TensorFlow leaves it to its user which server has what. Each worker has variables of its own, since
those of one program cannot be used by another. What is pulled are tensors of the worker, one of
each server.
"""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import numpy as np
import tables
import tensorflow as tf
from start import Start

_WORKER = "/job:worker/task:0/device:CPU:0"


class Server:
    def __init__(self, start: Start) -> None:
        start.publish(f"ps{start.rank}", f"{start.address}:{start.free_port()}".encode())
        cluster = tf.train.ClusterSpec({"ps": servers_of(start)})
        self._server = tf.distribute.Server(cluster, "ps", start.rank, protocol="grpc")
        start.publish(f"serves{start.rank}", b"")

    def close(self) -> None:
        os._exit(0)  # the server has no other end


def servers_of(start: Start) -> list[str]:
    return [start.expect(f"ps{server}").decode() for server in range(start.owners)]


class Table:
    """The variables of a case, one on each server, and what adds to them and reads them."""

    def __init__(self, case: tables.Case, servers: int) -> None:
        self.which, self._variables, self._ids, self._values = [], [], [], []
        for server in range(servers):
            rows, ids, which = case.of_server(server, servers)
            self.which.append(which)
            with tf.device(f"/job:ps/task:{server}/device:CPU:0"):
                self._variables.append(tf.Variable(tf.zeros((rows, *case.values.shape[1:]))))
            with tf.device(_WORKER):
                self._ids.append(None if ids is None else tf.constant(ids))
                self._values.append(tf.constant(case.values[which]))
        self._push, self._pull = tf.function(self._add), tf.function(self._read)
        self._push_pull = tf.function(self._add_and_read)

    def _add(self, all_ids: list[Any], all_values: list[Any]) -> None:
        for variable, ids, values in zip(self._variables, all_ids, all_values, strict=True):
            with tf.device(variable.device):
                if ids is None:
                    variable.assign_add(values)
                else:
                    variable.scatter_add(tf.IndexedSlices(values, ids))

    def _read(self, all_ids: list[Any]) -> list[Any]:
        found = []
        for variable, ids in zip(self._variables, all_ids, strict=True):
            with tf.device(variable.device):
                rows = variable.read_value() if ids is None else tf.gather(variable, ids)
            with tf.device(_WORKER):
                found.append(tf.identity(rows))
        return found

    def _add_and_read(self, all_ids: list[Any], all_values: list[Any]) -> list[Any]:
        self._add(all_ids, all_values)
        return self._read(all_ids)

    def push(self) -> None:
        self._push(self._ids, self._values)

    def pull(self) -> list[Any]:
        return self._pull(self._ids)

    def push_pull(self) -> list[Any]:
        return self._push_pull(self._ids, self._values)


class Worker:
    def __init__(self, start: Start) -> None:
        self._servers = start.owners
        mine = f"{start.address}:{start.free_port()}"
        cluster = tf.train.ClusterSpec({"ps": servers_of(start), "worker": [mine]})
        for server in range(start.owners):
            start.expect(f"serves{server}")
        tf.config.experimental_connect_to_cluster(cluster, job_name="worker", task_index=0)
        self._tables: dict[str, Table] = {}
        self._result: list[Any] = []

    def make(self, case: tables.Case) -> None:
        self._case, self._result = case, []
        if case.name not in self._tables:
            self._tables[case.name] = Table(case, self._servers)
        self._table = self._tables[case.name]

    def push(self) -> None:
        self._table.push()

    def pull(self) -> None:
        self._result = self._table.pull()

    def push_pull(self) -> None:
        self._result = self._table.push_pull()

    def pulled(self) -> Any:
        for which, tensor in zip(self._table.which, self._result, strict=True):
            self._case.out[which] = tensor.numpy()
        return np.asarray(self._case.out)

    def expected(self, pushes: int) -> Any:
        return self._case.values * np.float32(pushes)

    def close(self) -> None:
        os._exit(0)


if __name__ == "__main__":
    begun = tables.begin()
    tables.serve(begun, Worker(begun) if begun.is_user else Server(begun))
