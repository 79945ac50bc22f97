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


class Tensors:
    """The variables, one for each piece, and what reads and assigns them."""

    def __init__(self, lengths: list[int]) -> None:
        with tf.device(_SERVER):
            self._variables = [tf.Variable(tf.zeros(length, tf.uint8)) for length in lengths]
        self._read: Callable[[], list[Any]] = tf.function(self._read_here)
        self._write: Callable[[list[Any]], None] = tf.function(self._assign_there)

    def _read_here(self) -> list[Any]:
        with tf.device(_WORKER):
            return [tf.identity(variable) for variable in self._variables]

    def _assign_there(self, values: list[Any]) -> None:
        with tf.device(_SERVER):
            for variable, value in zip(self._variables, values, strict=True):
                variable.assign(value)

    def write(self, values: list[Any]) -> None:
        self._write(values)

    def read(self) -> list[Any]:
        return self._read()


class User:
    def __init__(self, start: one_sided.Start) -> None:
        cluster = meet(start)
        start.expect("serves")
        tf.config.experimental_connect_to_cluster(cluster, job_name="worker", task_index=0)
        self.local = one_sided.memory(start.most_bytes)
        self._made: dict[tuple[int, int], Tensors] = {}
        self._tensors = Tensors([])
        self._values: list[Any] = []

    def prepare(self, way: str, size: int) -> None:
        found = one_sided.pieces(way, size)
        key = (len(found), size)
        if key not in self._made:
            self._made[key] = Tensors([piece.stop - piece.start for piece in found])
        self._tensors = self._made[key]
        content = one_sided.memory(size)
        one_sided.fill(content, way)
        with tf.device(_WORKER):
            self._values = [tf.constant(content[piece]) for piece in found]
        if one_sided.is_read(way):
            self._tensors.write(self._values)
            self._values = []

    def fetch(self, way: str, size: int) -> None:
        for piece, value in zip(one_sided.pieces(way, size), self._tensors.read(), strict=True):
            self.local[piece] = value.numpy()

    def copy(self, way: str, size: int) -> None:
        if one_sided.is_read(way):
            self._tensors.read()
        else:
            self._tensors.write(self._values)

    def close(self) -> None:
        os._exit(0)


if __name__ == "__main__":
    begun = one_sided.Start()
    one_sided.serve(begun, User(begun) if begun.is_user else Owner(begun))
