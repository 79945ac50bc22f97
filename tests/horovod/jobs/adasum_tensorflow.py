"""Adasum by TensorFlow, eagerly, in a tf.function and by a tape; and who is refused."""

import sys
from pathlib import Path

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

hvd.init()
rank, size = hvd.rank(), hvd.size()
results = {}


def keep(case, given, found):
    for which, tensor in (("given", given), ("found", found)):
        if tensor.dtype == tf.bfloat16:
            tensor = tf.cast(tensor, tf.float32)
        results[f"{case} {which}"] = tensor.numpy()


def vector(dtype, seed):
    return tf.cast(np.random.default_rng(10 * seed + rank).standard_normal(1001), dtype)


def refused(operation):
    try:
        operation()
    except NotImplementedError as error:
        return str(error)
    raise AssertionError("should be refused")


mine = vector(tf.float32, 1)
alone = hvd.add_process_set([0])
messages = [refused(lambda: hvd.allreduce(mine, op=hvd.Adasum, process_set=alone))]
if size & (size - 1):
    messages.append(refused(lambda: hvd.allreduce(mine, op=hvd.Adasum)))
    messages.append(refused(lambda: hvd.grouped_allreduce([mine], op=hvd.Adasum)))
else:
    legacy = tf.compat.v1.train.GradientDescentOptimizer(0.1)
    messages.append(refused(lambda: hvd.DistributedOptimizer(legacy, op=hvd.Adasum)))
    for name, run in (("eager", lambda operation: operation), ("function", tf.function)):
        for seed, dtype in enumerate((tf.float16, tf.float32, tf.float64, tf.bfloat16)):
            given = vector(dtype, seed)
            found = run(lambda t: hvd.allreduce(t, op=hvd.Adasum))(given)
            keep(f"{dtype.name} {name}", given, found)
        group = [vector(tf.float32, 10), 100 * vector(tf.float32, 11)]
        found = run(lambda a, b: hvd.grouped_allreduce([a, b], op=hvd.Adasum))(*group)
        for i in range(2):
            keep(f"float32 group {i} {name}", group[i], found[i])
    variable = tf.Variable(tf.ones(1001))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(variable * mine)
    tape = hvd.DistributedGradientTape(tape, op=hvd.Adasum)
    keep("float32 tape", mine, tape.gradient(loss, [variable])[0])
results["messages"] = np.array(messages)
# Also so that no rank ends, which shuts all down, while another waits for its process set.
results["total"] = hvd.allreduce(tf.ones(3), op=hvd.Sum).numpy()
np.savez(Path(sys.argv[1]) / f"rank{rank}.npz", **results)
