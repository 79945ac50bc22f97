"""Every operation of horovod.tensorflow × type × shape × process set, with gradients.

Each case runs eagerly, and all cases of everybody's set and of one other run in one graph of
tf.function, where TensorFlow starts them in whatever order it likes.
"""

import itertools
import os

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from recording import fractions, mine, whole_numbers

REDUCED = ("int32", "int64", "float16", "float32", "float64", "uint8", "int8")
SCATTERED = REDUCED[:5]
MOVED = (*REDUCED, "int16", "uint16", "bool")
SHAPES = {"empty": (0,), "scalar": (), "odd": (7, 3), "prime": (1009,)}
OPS = ("Sum", "Average", "Min", "Max", "Product")
GRAPHS = ("world", "pair")  # sets that have graphs, if not all types are tried
SCALES = ((0.5, 1.0), (1.0, 0.25), (0.0, 1.0), (1 / 3, 3.0))


class Cases:
    """(name, inputs, operation): the operation takes the inputs and the name."""

    def __init__(self, process_set):
        self.process_set = process_set
        self.found = []
        few = os.environ["TYPES"] != "all" or process_set != hvd.global_process_set
        self.reduced = ("int32", "float16", "float32") if few else REDUCED
        self.scattered = ("int32", "float16", "float32") if few else SCATTERED
        self.moved = ("int64", "float16", "bool") if few else MOVED

    def add(self, case, function, given, *arguments, **options):
        inputs = given if isinstance(given, list) else [given]
        options["process_set"] = self.process_set

        def operation(tensors, name):
            what = tensors if isinstance(given, list) else tensors[0]
            # This one names itself.
            named = {} if function is hvd.grouped_reducescatter else {"name": name}
            return function(what, *arguments, **named, **options)

        self.found.append((case, [tf.convert_to_tensor(one) for one in inputs], operation))

    @staticmethod
    def values(shape, dtype, seed, make=whole_numbers):
        return np.asarray(make(shape, dtype, seed, hvd.rank()))

    def reductions(self):
        cases = itertools.product(OPS, self.reduced, SHAPES.items())
        for seed, (op, dtype, (label, shape)) in enumerate(cases):
            given = self.values(shape, dtype, seed)
            self.add(
                f"allreduce {op.lower()} {dtype} {label}",
                hvd.allreduce,
                given,
                op=getattr(hvd, op),
            )
        for dtype, (before, after) in itertools.product(("float16", "float32", "int32"), SCALES):
            options = {"op": hvd.Sum, "prescale_factor": before, "postscale_factor": after}
            given = self.values((101, 2), dtype, 7) * np.asarray(12, dtype)
            case = f"scaled {dtype} {before:.2f} {after}"
            self.add(f"allreduce {case}", hvd.allreduce, given, **options)
            self.add(f"reducescatter {case}", hvd.reducescatter, given, **options)
        real = self.values((301,), "float64", 9, fractions)
        self.add("allreduce compressed", hvd.allreduce, real, compression=hvd.Compression.fp16)
        many = [self.values((3 + 17 * i,), "float32", i) for i in range(20)]
        for op in OPS[:2]:
            self.add(f"grouped allreduce {op}", hvd.grouped_allreduce, many, op=getattr(hvd, op))
            self.add(
                f"grouped reducescatter {op}",
                hvd.grouped_reducescatter,
                many[:4],
                op=getattr(hvd, op),
            )
        size = self.process_set.size()
        shapes = {(size,), (1,), (0,), (7, 3), (3, 0), (1009,)}
        cases = itertools.product(self.scattered, sorted(shapes), OPS[:2])
        for seed, (dtype, shape, op) in enumerate(cases):
            given = self.values(shape, dtype, seed)
            case = f"reducescatter {op.lower()} {dtype} {shape}"
            self.add(case, hvd.reducescatter, given, op=getattr(hvd, op))

    def movements(self):
        me, size = self.process_set.rank(), self.process_set.size()
        for seed, dtype in enumerate(self.moved):
            for first, rest in ((0, (2,)), (1, ()), (me, (3,)), (100 + me, (2, 0)), (50 + me, ())):
                given = self.values((first, *rest), dtype, seed)
                self.add(f"allgather {dtype} {first - me} {first} {rest}", hvd.allgather, given)
            group = [self.values((2 + i + me, 3), dtype, i) for i in range(3)]
            self.add(f"grouped allgather {dtype}", hvd.grouped_allgather, group)
            for root, (label, shape) in itertools.product(self.process_set.ranks, SHAPES.items()):
                given = self.values(shape, dtype, seed)
                self.add(f"broadcast {dtype} {label} {root}", hvd.broadcast, given, root)
            for label, splits in {
                "none": [0] * size,
                "uneven": [10 + 7 * me + peer for peer in range(size)],
                "to the last": [0] * (size - 1) + [5 + me],
            }.items():
                given = self.values((sum(splits), 2), dtype, seed)
                splits = tf.constant(splits, tf.int32)
                self.add(f"alltoall {dtype} {label}", hvd.alltoall, given, splits=splits)
            given = self.values((size * 3, 2), dtype, seed)
            self.add(f"alltoall {dtype} even", hvd.alltoall, given)


def floats(outputs):
    outputs = outputs if isinstance(outputs, list | tuple) else [outputs]
    return [one for one in outputs if one.dtype.is_floating]


def compute(cases, given, label, forward_only):
    """{what: tensor} of all cases, and the gradients where there are any."""
    found = {}
    for number, ((case, _, operation), inputs) in enumerate(zip(cases, given, strict=True)):
        with tf.GradientTape() as tape:
            watched = inputs[0].dtype.is_floating and not forward_only
            tape.watch(inputs)
            outputs = operation(inputs, f"{label} {number}".replace(" ", "_"))
            if watched:
                weight = 1.0 + hvd.rank()
                total = tf.add_n(
                    [tf.reduce_sum(one) * tf.cast(weight, one.dtype) for one in floats(outputs)]
                )
        found[f"{case} {label}"] = outputs
        if watched:
            found[f"{case} {label} gradient"] = tape.gradient(total, inputs)
    return found


def in_graph(cases, given, label, forward_only):
    """The same as one graph. It does not know the shapes: what it knew to be empty it would not
    compute, and not each rank's part is."""
    signature = [
        [tf.TensorSpec([None] * one.shape.rank, one.dtype) for one in inputs] for inputs in given
    ]
    function = tf.function(
        lambda given: compute(cases, given, label, forward_only),
        input_signature=[signature],
        autograph=False,
    )
    return function(given)


def has_gradient(case):
    return not any(op in case for op in ("allreduce min", "allreduce max", "allreduce product"))


def scalars(record):
    for name in ("rank_op", "size_op", "local_rank_op", "local_size_op"):
        record.keep(name, getattr(hvd, name)())
        record.keep(f"{name} in a function", tf.function(getattr(hvd, name))())
    record.keep("included", hvd.process_set_included_op())


def run(record, sets):
    scalars(record)
    for set_name, process_set in mine(sets).items():
        cases = Cases(process_set)
        cases.reductions()
        cases.movements()
        for gradient in (True, False):
            chosen = [one for one in cases.found if has_gradient(one[0]) == gradient]
            label = f"{set_name} {'with' if gradient else 'without'}"
            given = [inputs for _, inputs, _ in chosen]
            for where, function in (("eager", compute), ("graph", in_graph)):
                if where == "graph" and set_name not in GRAPHS and os.environ["TYPES"] != "all":
                    continue
                found = function(chosen, given, f"{label} {where}", not gradient)
                for case, value in found.items():
                    record.keep(case, value)
