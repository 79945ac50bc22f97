"""Types of TensorFlow that Horovod itself refuses, eagerly and in a tf.function."""

import horovod.tensorflow as hvd
import numpy as np
import results
import tensorflow as tf

REDUCED = [tf.bfloat16, tf.uint8, tf.int8, tf.uint16, tf.int16, tf.bool]
OPS = {"Sum": np.sum, "Min": np.min, "Max": np.max, "Product": np.prod}

hvd.init()
rank, size = hvd.rank(), hvd.size()
cases = 0


def given(of, dtype, shape=(1001,)):
    """What rank `of` contributes: whole numbers, so that every type and order is exact."""
    numbers = np.random.default_rng(of).integers(0, 3, shape)
    return tf.cast(tf.constant(numbers), dtype)


def expect(actual, expected, case):
    global cases
    cases += 1
    expected = tf.convert_to_tensor(expected)
    assert actual.dtype == expected.dtype, (case, actual.dtype, expected.dtype)
    np.testing.assert_array_equal(actual.numpy(), expected.numpy(), err_msg=str(case))


def combined(op, dtype, shape=(1001,)):
    every = np.stack([given(of, dtype, shape).numpy() for of in range(size)])
    if dtype == tf.bool:
        return every.any(0) if op in ("Sum", "Max") else every.all(0)
    return tf.cast(OPS[op](every.astype("float64"), 0), dtype)


def reductions(dtype, run):
    mine = given(rank, dtype)
    for op in OPS:
        code = getattr(hvd, op)
        found = run(lambda t, code=code: hvd.allreduce(t, op=code))(mine)
        expect(found, combined(op, dtype), (dtype, op))
    for found in run(lambda t: hvd.grouped_allreduce([t, t], op=hvd.Sum))(mine):
        expect(found, combined("Sum", dtype), (dtype, "grouped"))
    rows = given(rank, dtype, (7, 3))
    total = np.array_split(np.array(combined("Sum", dtype, (7, 3))), size)[rank]
    expect(run(lambda t: hvd.reducescatter(t, op=hvd.Sum))(rows), total, (dtype, "reducescatter"))
    for found in run(lambda t: hvd.grouped_reducescatter([t, t], op=hvd.Sum))(rows):
        expect(found, total, (dtype, "grouped reducescatter"))


def movements(run):
    every = [given(of, tf.bfloat16, (3 + of, 2)) for of in range(size)]
    expect(run(hvd.allgather)(every[rank]), tf.concat(every, 0), "allgather")
    for found in run(lambda t: hvd.grouped_allgather([t, t]))(every[rank]):
        expect(found, tf.concat(every, 0), "grouped allgather")
    same = [given(of, tf.bfloat16) for of in range(size)]
    expect(run(lambda t: hvd.broadcast(t, 1))(same[rank]), same[1], "broadcast")
    splits = [[1 + of, 2] for of in range(size)]
    sent = [tf.split(every[of], splits[of]) for of in range(size)]
    found, received = run(lambda t: hvd.alltoall(t, splits[rank]))(every[rank])
    expect(found, tf.concat([of[rank] for of in sent], 0), "alltoall")
    expect(received, np.array(splits, "int32")[:, rank], "received splits")


def in_place():
    for inplace in (False, True):
        variables = [
            tf.Variable(given(rank, dtype), name=dtype.name) for dtype in (tf.bfloat16, tf.float32)
        ]
        hvd.broadcast_variables(variables, root_rank=1, inplace=inplace)
        for variable in variables:
            expect(variable.value(), given(1, variable.dtype), ("variables", inplace))


def factors(run):
    mine, total = given(rank, tf.bfloat16), combined("Sum", tf.bfloat16)
    average = tf.cast(tf.cast(total, tf.float32) / size, tf.bfloat16)
    expect(run(hvd.allreduce)(mine), average, "average")
    scaled = run(lambda t: hvd.allreduce(t, op=hvd.Sum, prescale_factor=0.5, postscale_factor=8.0))(
        mine
    )
    expect(scaled, total * 4, "scaled")
    for name in ("fp16", "bf16"):
        by = getattr(hvd.Compression, name)
        found = run(lambda t, by=by: hvd.allreduce(t, op=hvd.Sum, compression=by))(
            given(rank, tf.float32)
        )
        expect(found, combined("Sum", tf.float32), name)


def gradients():
    def check(case, operation, shape, expected):
        tensor = tf.Variable(tf.ones(shape, tf.bfloat16))
        with tf.GradientTape() as tape:
            out = tf.reduce_sum(operation(tensor))
        found = tape.gradient(out, tensor)
        expect(tf.convert_to_tensor(found), tf.fill(shape, tf.cast(expected, tf.bfloat16)), case)

    check("d allreduce", lambda t: hvd.allreduce(t, op=hvd.Sum), (5,), size)
    check("d allgather", lambda t: hvd.allgather(t), (3, 2), 1)
    check("d broadcast", lambda t: hvd.broadcast(t, 0), (5,), 1 if rank == 0 else 0)
    check("d alltoall", lambda t: hvd.alltoall(t), (2 * size,), 1)
    check("d reducescatter", lambda t: hvd.reducescatter(t, op=hvd.Sum), (2 * size,), size)


def joined():
    for step in range(2 if rank == 0 else 1):
        there = size if step == 0 else 1
        ones = tf.ones(7, tf.bfloat16)
        expect(hvd.allreduce(ones, op=hvd.Sum, name=f"join{step}"), ones * there, "join")
    hvd.join()


for run in (lambda operation: operation, tf.function):
    for dtype in REDUCED:
        reductions(dtype, run)
    movements(run)
    factors(run)
in_place()
gradients()
joined()
results.write(rank, cases=cases)
