"""Keras 2 (tf-keras) under horovod.tensorflow.keras: averages, and its callbacks work."""

import horovod.tensorflow.keras as hvd
import numpy as np
import results
import tensorflow as tf
from horovod.tensorflow.keras import callbacks

assert tf.keras.Model.__module__.startswith("tf_keras"), tf.keras.Model.__module__
hvd.init()
rank, size = hvd.rank(), hvd.size()
random = np.random.default_rng(5)
inputs = random.standard_normal((6, size, 8, 5)).astype("float32")
targets = random.standard_normal((6, size, 8, 2)).astype("float32")


def trained(optimizer, x, y, batch, seed, used=()):
    model = tf.keras.Sequential([tf.keras.layers.Input((5,)), tf.keras.layers.Dense(2)])
    numbers = np.random.default_rng(seed)
    model.set_weights([numbers.standard_normal(w.shape) for w in model.get_weights()])
    model.compile(optimizer, "mse")
    model.fit(x.reshape(-1, 5), y.reshape(-1, 2), batch, shuffle=False, verbose=0, callbacks=used)
    return model


SGD = tf.keras.optimizers.SGD
ours = trained(hvd.DistributedOptimizer(SGD(0.1)), inputs[:, rank], targets[:, rank], 8, 1)
theirs = trained(SGD(0.1), inputs, targets, 8 * size, 1)
for found, expected in zip(ours.get_weights(), theirs.get_weights(), strict=True):
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)

used = [
    callbacks.BroadcastGlobalVariablesCallback(0),
    callbacks.MetricAverageCallback(),
    callbacks.LearningRateWarmupCallback(0.1, warmup_epochs=1),
]
optimizer = hvd.DistributedOptimizer(SGD(0.1, momentum=0.9))
model = trained(optimizer, inputs[:, rank], targets[:, rank], 8, rank, used)
for weights in model.get_weights():
    every = np.array(hvd.allgather(weights[None]))
    np.testing.assert_array_equal(every[0], every[1])
assert abs(float(model.optimizer.learning_rate) - 0.1) < 1e-6
results.write(rank, done=True)
