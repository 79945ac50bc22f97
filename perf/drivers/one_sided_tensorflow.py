"""Reads and writes of a variable on a TensorFlow server by gRPC, as ParameterServerStrategy does
them: functions of the worker that read and assign a variable of the parameter server.

The memory is the server's, so that the user compares by what it reads back.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import one_sided
import tensorflow as tf

_SERVER, _WORKER = "/job:ps/task:0/device:CPU:0", "/job:worker/task:0/device:CPU:0"


def meet(start: one_sided.Start) -> Any:
    """Both know both addresses."""
    mine, other = ("worker", "ps") if start.is_user else ("ps", "worker")
    addresses = {mine: f"{start.address}:{start.free_port()}"}
    start.publish(mine, addresses[mine].encode())
    addresses[other] = start.expect(other).decode()
    return tf.train.ClusterSpec({job: [address] for job, address in addresses.items()})


class Owner:
    memory = None

    def __init__(self, start: one_sided.Start) -> None:
        self._server = tf.distribute.Server(meet(start), job_name="ps", protocol="grpc")
        start.publish("serves", b"")

    def close(self) -> None:
        os._exit(0)  # the server has no other end


class Tensor:
    """The variable, and what reads and assigns it."""

    def __init__(self, local: Any) -> None:
        with tf.device(_SERVER):
            self._variable = tf.Variable(tf.zeros(len(local), tf.uint8))
        with tf.device(_WORKER):
            self._local = tf.constant(local)
        self._read: Callable[[], Any] = tf.function(self._read_here)
        self._write: Callable[[Any], None] = tf.function(self._assign_there)

    def _read_here(self) -> Any:
        with tf.device(_WORKER):
            return tf.identity(self._variable)

    def _assign_there(self, value: Any) -> None:
        with tf.device(_SERVER):
            self._variable.assign(value)

    def take(self, local: Any) -> None:
        with tf.device(_WORKER):
            self._local = tf.constant(local)

    def write(self) -> None:
        self._write(self._local)

    def read(self) -> Any:
        return self._read()


class User:
    def __init__(self, start: one_sided.Start) -> None:
        cluster = meet(start)
        start.expect("serves")
        tf.config.experimental_connect_to_cluster(cluster, job_name="worker", task_index=0)
        self.local = one_sided.memory(start.most_bytes)
        self._tensors: dict[int, Tensor] = {}

    def prepare(self, way: str, size: int) -> None:
        tensor = self._tensors.setdefault(size, Tensor(self.local[:size]))
        tensor.take(one_sided.pattern(way, size))
        if way == "read":
            tensor.write()

    def fetch(self, way: str, size: int) -> None:
        self.local[:size] = self._tensors[size].read().numpy()

    def copy(self, way: str, size: int) -> None:
        tensor = self._tensors[size]
        if way == "read":
            tensor.read()
        else:
            tensor.write()

    def close(self) -> None:
        os._exit(0)


if __name__ == "__main__":
    begun = one_sided.Start()
    one_sided.serve(begun, User(begun) if begun.is_user else Owner(begun))
