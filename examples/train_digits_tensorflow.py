"""Trains a small convolutional net on scikit-learn's digits with Horovod and TensorFlow.

    horovodrun -np 2 python examples/train_digits_tensorflow.py

An ordinary Horovod script with a DistributedGradientTape: it knows nothing of what carries its
gradients. Rank 0 ends with a line of JSON: accuracy, the weights' digest, and what a step took.
"""

import argparse
import hashlib
import json
import statistics
import time

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits


class Net(tf.Module):
    """Two convolutions and two dense layers, on the variables themselves."""

    def __init__(self) -> None:
        super().__init__()
        shapes = [(3, 3, 1, 16), (3, 3, 16, 32), (4 * 4 * 32, 128), (128, 10)]
        self.weights = [self._weight(shape, seed) for seed, shape in enumerate(shapes)]
        self.biases = [tf.Variable(tf.zeros(shape[-1])) for shape in shapes]

    @staticmethod
    def _weight(shape: tuple[int, ...], seed: int) -> tf.Variable:
        spread = np.sqrt(2 / np.prod(shape[:-1]))
        values = np.random.default_rng(seed).normal(0, spread, shape)
        return tf.Variable(values.astype(np.float32))

    def __call__(self, images: tf.Tensor) -> tf.Tensor:
        hidden = images
        for weight, bias in zip(self.weights[:2], self.biases[:2], strict=True):
            hidden = tf.nn.relu(tf.nn.conv2d(hidden, weight, strides=1, padding="SAME") + bias)
        hidden = tf.nn.max_pool2d(hidden, 2, 2, "VALID")
        hidden = tf.reshape(hidden, (len(images), -1))
        hidden = tf.nn.relu(hidden @ self.weights[2] + self.biases[2])
        return hidden @ self.weights[3] + self.biases[3]


def load() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Images and labels to train with, then to test with: every fifth image."""
    digits = load_digits()
    images = (digits.images[..., None] / 16).astype(np.float32)
    labels = digits.target
    held_back = np.arange(len(labels)) % 5 == 0
    return images[~held_back], labels[~held_back], images[held_back], labels[held_back]


def train_step(net, momenta, images, labels, rate=0.05, momentum=0.9) -> None:
    variables = list(net.trainable_variables)
    with tf.GradientTape() as tape:
        logits = net(images)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        loss = tf.reduce_mean(losses)
    tape = hvd.DistributedGradientTape(tape)
    for variable, gradient, past in zip(
        variables, tape.gradient(loss, variables), momenta, strict=True
    ):
        past.assign(momentum * past + gradient)
        variable.assign_sub(rate * past)


def accuracy(net, images, labels) -> float:
    """Over all ranks, each of which looks at its share."""
    mine = slice(hvd.rank(), None, hvd.size())
    guesses = tf.argmax(net(images[mine]), axis=1).numpy()
    right = tf.constant((guesses == labels[mine]).sum(), tf.int64)
    return float(hvd.allreduce(right, op=hvd.Sum, name="right").numpy()) / len(labels)


def digest(net) -> str:
    """Of all weights: equal on two runs if every bit is."""
    data = b"".join(variable.numpy().tobytes() for variable in net.trainable_variables)
    return hashlib.sha256(data).hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch", type=int, default=32, help="images a rank and step")
    options = parser.parse_args()

    hvd.init()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.experimental.enable_op_determinism()
    tf.random.set_seed(7)
    images, labels, test_images, test_labels = load()
    net = Net()
    momenta = [tf.Variable(tf.zeros_like(variable)) for variable in net.trainable_variables]
    hvd.broadcast_variables(net.trainable_variables, root_rank=0)

    times = []
    shuffle = np.random.default_rng(7)  # the same order on all ranks
    for _ in range(options.epochs):
        order = shuffle.permutation(len(labels))
        for start in range(0, len(order), options.batch * hvd.size()):
            batch = order[start : start + options.batch * hvd.size()]
            if len(batch) < options.batch * hvd.size():
                break
            share = batch[hvd.rank() :: hvd.size()]
            began = time.perf_counter()
            train_step(net, momenta, images[share], labels[share])
            times.append(time.perf_counter() - began)
    result = {
        "framework": "tensorflow",
        "ranks": hvd.size(),
        "steps": len(times),
        "accuracy": accuracy(net, test_images, test_labels),
        "weights": digest(net),
        "step_ms": 1e3 * statistics.median(times),
    }
    if hvd.rank() == 0:
        print(json.dumps(result), flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
