"""Training with horovod.tensorflow: tapes and optimizers, variables and objects, joins, errors."""

import os

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf


class Net:
    """An embedding, whose gradients are sparse, and two dense layers."""

    def __init__(self):
        generator = np.random.default_rng(5)
        self.table, self.weight, self.bias = (
            tf.Variable(generator.uniform(-1, 1, shape).astype("float32"))
            for shape in ((20, 4), (4, 3), (3,))
        )
        self.variables = [self.table, self.weight, self.bias]

    def loss(self, words):
        looked_up = tf.reduce_mean(tf.nn.embedding_lookup(self.table, words), 1)
        return tf.reduce_mean(tf.square(tf.tanh(looked_up @ self.weight) + self.bias))


def words(step):
    return np.random.default_rng([step, hvd.rank()]).integers(0, 20, (6, 3))


def descend(net, gradients):
    for variable, gradient in zip(net.variables, gradients, strict=True):
        if gradient is not None:
            variable.assign_sub(0.1 * tf.convert_to_tensor(gradient))


def tapes(record, others):
    for case, options in {
        "plain": {},
        "sum": {"op": hvd.Sum},
        "compressed": {"compression": hvd.Compression.fp16},
        "predivided": {"gradient_predivide_factor": 2.0, "sparse_as_dense": True},
        "two groups": {"groups": 2},
        "sparse as dense": {"sparse_as_dense": True},
        "process set": {"process_set": others},
    }.items():
        if "process_set" in options and not others.included():
            continue
        # A function of a tape takes TensorFlow seconds to make.
        in_function = os.environ["TYPES"] == "all" or case in ("plain", "process set")
        for where in ("eager", "function") if in_function else ("eager",):
            net = Net()

            def step(given, net=net, options=options):
                with hvd.DistributedGradientTape(tf.GradientTape(), **options) as tape:
                    loss = net.loss(given)
                descend(net, tape.gradient(loss, net.variables))

            if where == "function":
                step = tf.function(step)
            for number in range(3):
                step(tf.constant(words(number)))
            record.keep(f"{case} {where}", net.variables)


def partial(record):
    """A layer of one's own: its gradients are not averaged."""
    net = Net()
    tape = hvd.DistributedGradientTape(tf.GradientTape())
    tape.register_local_source(net.weight)
    with tape:
        loss = net.loss(words(1))
    record.keep(
        "local source", [tf.convert_to_tensor(one) for one in tape.gradient(loss, net.variables)]
    )


def optimizers(record):
    """Optimizers of TensorFlow itself; those of Keras are another matter."""
    for case, options in {
        "plain": {},
        "predivided": {"gradient_predivide_factor": 2.0},
        "sum": {"op": hvd.Sum},
    }.items():
        net = Net()
        inner = tf.compat.v1.train.GradientDescentOptimizer(0.1)
        optimizer = hvd.DistributedOptimizer(inner, sparse_as_dense=True, **options)
        for step in range(4):
            given = words(step)
            pairs = optimizer.compute_gradients(
                lambda net=net, given=given: net.loss(given), net.variables
            )
            optimizer.apply_gradients(pairs)
        record.keep(f"optimizer {case}", net.variables)


def states(record):
    root = hvd.size() - 1
    for inplace in (False, True):
        mine = [
            tf.Variable(tf.fill([3 + i, 2], tf.cast(hvd.rank() + i, dtype)), name=f"state{i // 2}")
            for i, dtype in enumerate((tf.float32, tf.float64, tf.int64, tf.float32))
        ]
        record.attempt(
            f"broadcast_variables {inplace}",
            hvd.broadcast_variables,
            mine,
            root,
            inplace=inplace,
        )
        record.keep(f"variables {inplace}", mine)

    @tf.function
    def from_first():
        hvd.broadcast_variables(mine, 0)

    from_first()
    record.keep("variables in a function", mine)
    one = tf.Variable([1.0 + hvd.rank(), 2.0])
    hvd.broadcast_([one], root)
    record.keep("broadcast_", one)
    given = {"rank": hvd.rank(), "text": "y" * 100 * hvd.rank()}
    record.keep("object", repr(hvd.broadcast_object(given, root)))
    record.keep("objects", repr(hvd.allgather_object(given)))
    values = tf.IndexedSlices(
        tf.fill([2, 3], 1.0 + hvd.rank()), tf.constant([hvd.rank(), 0]), tf.constant([9, 3])
    )
    for op in (hvd.Sum, hvd.Average):
        found = hvd.allreduce(values, op=op)
        record.keep(f"slices {op}", [found.values, found.indices])
    record.attempt("slices min", hvd.allreduce, values, op=hvd.Min)
    record.attempt("batch norm", lambda: hvd.SyncBatchNormalization()(tf.ones([2, 3]), True))


def joins(record):
    for step in range(hvd.rank() + 1):
        given = tf.fill([5], hvd.rank() + 1.0)
        for op in (hvd.Sum, hvd.Average):
            record.keep(f"joined {op} {step}", hvd.allreduce(given, op=op, name=f"j{op}{step}"))
    record.keep("last", hvd.join())
    if hvd.rank() > 0:
        record.attempt("joined gather", hvd.allgather, tf.ones([3]), name="joined_gather")
        record.attempt("joined root", hvd.broadcast, tf.ones([3]), 1, name="joined_root")
    hvd.join()
    record.keep("after", hvd.allreduce(tf.ones([3]), op=hvd.Sum, name="after"))


def bad_input(record):
    other = int(hvd.rank() > 0)
    ones, differ = tf.ones([6]), tf.ones([6 + other])
    kinds = tf.cast(ones, tf.float64 if hvd.rank() > 0 else tf.float32)
    wide = tf.ones([2, 3 + other])
    for case, operation in {
        "allreduce shapes": lambda n: hvd.allreduce(differ, name=n),
        "allreduce dimensions": lambda n: hvd.allreduce(tf.ones([4] * (1 + other)), name=n),
        "allreduce types": lambda n: hvd.allreduce(kinds, name=n),
        "allreduce scales": lambda n: hvd.allreduce(
            ones, name=n, op=hvd.Sum, prescale_factor=1.0 + other
        ),
        "allreduce ops": lambda n: hvd.allreduce(
            ones, name=n, op=hvd.Sum if hvd.rank() == 0 else hvd.Max
        ),
        "grouped allreduce shapes": lambda n: hvd.grouped_allreduce([ones, differ], name=n),
        "allgather widths": lambda n: hvd.allgather(wide, name=n),
        "allgather types": lambda n: hvd.allgather(kinds, name=n),
        "allgather scalar": lambda n: hvd.allgather(tf.constant(1.0), name=n),
        "broadcast shapes": lambda n: hvd.broadcast(differ, 0, name=n),
        "broadcast types": lambda n: hvd.broadcast(kinds, 0, name=n),
        "broadcast roots": lambda n: hvd.broadcast(ones, other, name=n),
        "broadcast from nobody": lambda n: hvd.broadcast(ones, hvd.size(), name=n),
        "alltoall types": lambda n: hvd.alltoall(tf.repeat(kinds, hvd.size()), name=n),
        "alltoall widths": lambda n: hvd.alltoall(tf.ones([hvd.size(), 3 + other]), name=n),
        "alltoall not even": lambda n: hvd.alltoall(tf.ones([hvd.size() + 1]), name=n),
        "alltoall splits": lambda n: hvd.alltoall(ones, [100] * hvd.size(), name=n),
        "alltoall splits of others": lambda n: hvd.alltoall(ones, [1] * (1 + hvd.size()), name=n),
        "reducescatter shapes": lambda n: hvd.reducescatter(differ, name=n),
        "reducescatter types": lambda n: hvd.reducescatter(kinds, name=n),
        "reducescatter scalar": lambda n: hvd.reducescatter(tf.constant(1.0), name=n),
        "reducescatter min": lambda n: hvd.reducescatter(ones, op=hvd.Min, name=n),
        "allreduce bool": lambda n: hvd.allreduce(tf.constant([True]), name=n),
    }.items():
        record.attempt(f"bad {case}", operation, f"bad_{case}".replace(" ", "_"))
        record.keep(f"after {case}", hvd.allreduce(ones, name="after_bad"))
    unknown = hvd.ProcessSet([0])
    unknown.process_set_id = 77
    record.attempt("unknown set", hvd.allreduce, ones, op=hvd.Sum, process_set=unknown)


def run(record, sets):
    tapes(record, sets["others"])
    partial(record)
    optimizers(record)
    states(record)
    joins(record)
    bad_input(record)
