"""Training steps of MXNet over a store, its own or that of ringcoll: see mxnet_job.py.

The word after the store's name is the model: "lenet" is trained by gluon's Trainer, and "mlp" by
Module. Images are random, 28 x 28, of 10 classes. The optimizer runs in the servers. A command of
the harness, which comes to all ranks:

    run IMAGES BATCHES CALLS  each call is a step, with so many images on each worker
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import mxnet_job
import numpy as np
import tables
from bench import times_line
from start import Start

_CLASSES = 10
_RATE = 0.01


def _images(mx: Any, rank: int, count: int) -> tuple[Any, Any]:
    random = np.random.default_rng(rank)
    labels = random.integers(0, _CLASSES, count)
    images = random.normal(size=(count, 1, 28, 28)) + labels[:, None, None, None] / _CLASSES
    return mx.nd.array(images), mx.nd.array(labels)


def lenet(mx: Any, store: Any, count: int) -> Callable[[], None]:
    """The network of MXNet's own example of digits: 431,080 parameters."""
    nn = mx.gluon.nn
    net = nn.HybridSequential(prefix="lenet_")
    with net.name_scope():
        for channels in (20, 50):
            net.add(nn.Conv2D(channels, 5, activation="tanh"), nn.MaxPool2D(2, 2))
        net.add(nn.Flatten(), nn.Dense(500, activation="tanh"), nn.Dense(_CLASSES))
    net.initialize(mx.init.Xavier())
    net.hybridize()
    images, labels = _images(mx, store.rank, count)
    loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    settings = {"learning_rate": _RATE, "momentum": 0.9}
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", settings, kvstore=store)

    def step() -> None:
        with mx.autograd.record():
            error = loss(net(images), labels)
        error.backward()
        trainer.step(count * store.num_workers)
        mx.nd.waitall()

    return step


def mlp(mx: Any, store: Any, count: int) -> Callable[[], None]:
    """Two hidden layers of 1024: 1,863,690 parameters."""
    net = mx.sym.Flatten(mx.sym.Variable("data"))
    for width in (1024, 1024):
        net = mx.sym.Activation(mx.sym.FullyConnected(net, num_hidden=width), act_type="relu")
    net = mx.sym.FullyConnected(net, num_hidden=_CLASSES)
    net = mx.sym.SoftmaxOutput(net, name="softmax")
    images, labels = _images(mx, store.rank, count)
    module = mx.mod.Module(net)
    module.bind([("data", images.shape)], [("softmax_label", labels.shape)])
    module.init_params(mx.init.Xavier())
    settings = {"learning_rate": _RATE, "momentum": 0.9}
    module.init_optimizer(store, "sgd", settings)
    batch = mx.io.DataBatch([images], [labels])

    def step() -> None:
        module.forward_backward(batch)
        module.update()
        mx.nd.waitall()

    return step


class Trainer(tables.ServerRank):
    """Answers the commands."""

    def __init__(self, start: Start) -> None:
        self._store = mxnet_job.join(start)
        self._make = {"lenet": lenet, "mlp": mlp}[start.words[1]]
        self._step: Callable[[], None] | None = None

    def run(self, words: list[str]) -> str:
        images, batches, calls = map(int, words)
        if self._step is None:
            self._step = self._make(__import__("mxnet"), self._store, images)
            self._step()
        times = []
        for _ in range(batches):
            begin = time.perf_counter()
            for _ in range(calls):
                self._step()
            times.append(time.perf_counter() - begin)
        return times_line(times)


if __name__ == "__main__":
    begun = tables.begin()
    if begun.is_user:
        tables.answer(begun, Trainer(begun))
        os._exit(0)
    else:
        mxnet_job.serve(begun)
