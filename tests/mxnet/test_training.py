"""gluon's Trainer and Module train over a store as MXNet does over one process with all data."""

from __future__ import annotations

import mxnet as mx
import numpy
import pytest
from mxnet import autograd, gluon

from ringcoll.mxnet import registry
from ringcoll.mxnet.store import Ringcoll

ROWS, FEATURES, ROUNDS = 8, 5, 4


def data(rank, size):
    """The part of a worker."""
    random = numpy.random.RandomState(3)
    x = random.randn(ROWS * size, FEATURES).astype("float32")
    y = (x @ random.randn(FEATURES, 1)).astype("float32")
    part = slice(ROWS * rank, ROWS * (rank + 1))
    return mx.nd.array(x[part]), mx.nd.array(y[part])


def trained(kv, update_on_kvstore, rank, size):
    """The weights after some steps."""
    net = gluon.nn.Dense(1, in_units=FEATURES, prefix="dense_")
    net.initialize(mx.init.Constant(0.5))  # alike: gluon opens the store after the first gradient
    trainer = gluon.Trainer(
        net.collect_params(),
        "sgd",
        {"learning_rate": 0.05},
        kvstore=kv,
        update_on_kvstore=update_on_kvstore,
    )
    x, y = data(rank, size)
    for _ in range(ROUNDS):
        with autograd.record():
            loss = gluon.loss.L2Loss()(net(x), y)
        loss.backward()
        trainer.step(ROWS * size)
    return net.weight.data().asnumpy()


def alone(size):
    """What one process makes of the data of all."""
    parts = [data(rank, size) for rank in range(size)]
    net = gluon.nn.Dense(1, in_units=FEATURES, prefix="dense_")
    net.initialize(mx.init.Constant(0.5))
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.05}, kvstore=None)
    x = mx.nd.concat(*[part[0] for part in parts], dim=0)
    y = mx.nd.concat(*[part[1] for part in parts], dim=0)
    for _ in range(ROUNDS):
        with autograd.record():
            loss = gluon.loss.L2Loss()(net(x), y)
        loss.backward()
        trainer.step(ROWS * size)
    return net.weight.data().asnumpy()


@pytest.mark.parametrize("update_on_kvstore", [True, False])
def test_trainer(workers, update_on_kvstore):
    found = workers(lambda kv: trained(kv, update_on_kvstore, kv.rank, kv.num_workers), size=2)
    numpy.testing.assert_array_equal(found[0], found[1])
    numpy.testing.assert_allclose(found[0], alone(2), 1e-5)


def test_trainer_asynchronous(workers):
    found = workers(
        lambda kv: trained(kv, None, kv.rank, kv.num_workers), kind="dist_async", size=1
    )
    numpy.testing.assert_allclose(found[0], alone(1), 1e-5)


def test_an_embedding_whose_rows_are_in_the_store(workers):
    """A row_sparse weight: rows are pulled for a batch, and gradients of rows are pushed."""

    def program(kv):
        layer = gluon.contrib.nn.SparseEmbedding(6, 2, prefix="embedding_")
        layer.initialize(mx.init.One())
        trainer = gluon.Trainer(layer.collect_params(), "sgd", {"learning_rate": 1.0}, kvstore=kv)
        ids = mx.nd.array([0, 2 + kv.rank])
        with autograd.record():
            loss = layer(ids).sum()
        loss.backward()
        trainer.step(1)
        every = mx.nd.arange(6, dtype="int64")
        return layer.weight.row_sparse_data(every).asnumpy()[:, 0].tolist()

    assert workers(program, size=2) == [[-1, 1, 0, 0, 1, 1]] * 2


@pytest.mark.parametrize("update_on_kvstore", ["1", "0"])
def test_module_fit(workers, monkeypatch, update_on_kvstore):
    monkeypatch.setenv("MXNET_UPDATE_ON_KVSTORE", update_on_kvstore)

    def program(kv):
        x, y = data(kv.rank, kv.num_workers)
        symbol = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=1, name="dense")
        symbol = mx.sym.LinearRegressionOutput(symbol, mx.sym.var("label"), name="out")
        module = mx.mod.Module(symbol, label_names=["label"])
        batches = mx.io.NDArrayIter(x, y, ROWS, label_name="label")
        module.fit(
            batches,
            kvstore=kv,
            optimizer_params={"learning_rate": 0.05},
            initializer=mx.init.Constant(0.5),
            eval_metric="mse",
            num_epoch=ROUNDS,
        )
        return module.get_params()[0]["dense_weight"].asnumpy()

    found = workers(program, size=2)
    numpy.testing.assert_allclose(found[0], found[1], 1e-6)
    numpy.testing.assert_allclose(found[0], alone(2), 1e-4)


@pytest.mark.parametrize("name", ["ringcoll", "Ringcoll_async"])
def test_a_trainer_makes_the_store_by_its_name(workers, monkeypatch, name):
    """MXNet leaves a store away for one device, unless its name has "dist" in it."""

    def program(kv):
        names = mx.kvstore.KVStoreBase.kv_registry
        monkeypatch.setitem(names, name.lower(), lambda: kv)
        net = gluon.nn.Dense(1, in_units=FEATURES)
        net.initialize()
        trainer = gluon.Trainer(net.collect_params(), "sgd", {}, kvstore=name)
        trainer._init_kvstore()
        assert trainer._kvstore is kv and trainer._update_on_kvstore

    workers(program, size=1)


def test_stores_are_registered():
    names = mx.kvstore.KVStoreBase.kv_registry
    assert names[registry.OWN] is Ringcoll
    assert registry.OWN_ASYNC in names
    assert not set(names) & set(registry.REPLACED), "that wants the variable"
