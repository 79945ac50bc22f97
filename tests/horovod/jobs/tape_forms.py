"""DistributedGradientTape gives what tf.GradientTape does, averaged, for all forms of arguments.

Argument: the folder for the results. Each case is compared with the plain tape of a loss that has
the average of the ranks' factors.
"""

import collections

import horovod.tensorflow as hvd
import results
import tensorflow as tf

Pair = collections.namedtuple("Pair", "first second")
ZERO = tf.UnconnectedGradients.ZERO

hvd.init()
FACTOR = hvd.rank() + 1.0
AVERAGE = (hvd.size() + 1) / 2
a, b, c = (tf.Variable([value, 2 * value]) for value in (1.0, 2.0, 3.0))
rows = tf.Variable(tf.reshape(tf.range(8.0), [4, 2]))
other_rows = tf.Variable(tf.reshape(tf.range(10.0), [5, 2]))
matrix = tf.Variable([[1.0, 2.0], [3.0, 4.0]])
constant = tf.constant([5.0, 6.0])
alike = [tf.Variable([1.0, 2.0], name="w"), tf.Variable([3.0, 4.0], name="w")]
found = {}


def losses(factor):
    """Of everything but c, one for each of two targets."""
    shared = tf.reduce_sum(a * b) + tf.reduce_sum(matrix) * tf.reduce_sum(constant * a)
    looked_up = tf.nn.embedding_lookup(rows, [1, 3, 1]), tf.nn.embedding_lookup(other_rows, [4, 0])
    sparse = tf.reduce_sum(looked_up[0]) + 2 * tf.reduce_sum(looked_up[1])
    return [factor * (shared + sparse + tf.reduce_sum(alike[0] * alike[1])), factor * tf.square(a)]


def tape_of(factor, persistent=False):
    with tf.GradientTape(persistent=persistent) as tape:
        tape.watch(constant)
        targets = losses(factor)
    return tape, targets


def dense(gradient):
    if gradient is None:
        return None
    return tf.convert_to_tensor(gradient).numpy().round(4).tolist()


def form(gradients):
    """The gradients as numbers, in their structure, and which of them are sparse."""
    kinds = tf.nest.map_structure(lambda g: isinstance(g, tf.IndexedSlices), gradients)
    return repr(tf.nest.map_structure(dense, gradients)), repr(kinds)


def check(case, sources, *arguments, target=0, options=None, kinds=True, **named):
    tape, targets = tape_of(AVERAGE)
    expected = form(tape.gradient(targets[target], sources, *arguments, **named))
    tape, targets = tape_of(FACTOR)
    distributed = hvd.DistributedGradientTape(tape, **(options or {}))
    try:
        actual = form(distributed.gradient(targets[target], sources, *arguments, **named))
    except Exception as error:
        actual = f"{type(error).__name__}: {error}", None
    right = actual == expected if kinds else actual[0] == expected[0]
    found[case] = "" if right else f"{actual}, and not {expected}"


forms = {
    "one": a,
    "list": [a, b],
    "tuple": (b, a),
    "named tuple": Pair(a, b),
    "dict": {"second": b, "first": a},
    "ordered dict": collections.OrderedDict(z=a, y=b),
    "nested": [a, {"b": b, "more": (matrix, [constant])}],
    "empty list": [],
    "empty in a list": [a, []],
    "twice": [a, b, a],
    "tensor": constant,
    "not used": [a, c],
    "not used alone": c,
    "sparse": rows,
    "sparse among dense": {"rows": rows, "a": a, "others": other_rows},
    "alike by name": alike,
}
for name, sources in forms.items():
    check(name, sources)
    for variety, options in {
        "one group": {"groups": 1},
        "two groups": {"groups": 2},
        "sparse as dense": {"sparse_as_dense": True},
        "predivided": {"gradient_predivide_factor": 2.0},
    }.items():
        if variety == "predivided" and "sparse" in name:
            continue  # which Horovod refuses
        check(f"{name}, {variety}", sources, options=options, kinds=variety != "sparse as dense")
check("groups of variables", [a, b, matrix], options={"groups": [[a, matrix]]})
check("groups of others", [a, b], options={"groups": [[a, b], [c], [matrix]]})
check("groups alike by name", alike, options={"groups": [[alike[1]], [alike[0]]]})
check("groups of sparse", [a, rows, other_rows, b], options={"groups": [[a, rows, other_rows]]})

for name, unconnected in (("zero", ZERO), ("zero by name", "zero"), ("none by name", "none")):
    check(f"unconnected {name}", [a, c], unconnected_gradients=unconnected)
    check(f"unconnected {name}, one", c, unconnected_gradients=unconnected)
check("unconnected, by place", {"c": c}, None, ZERO)
weights = tf.constant([2.0, -1.0])
check("output gradients", [a, b], target=1, output_gradients=weights)
check("output gradients, by place", {"a": a}, weights, target=1)
check("several targets", [a, b], target=slice(0, 2), output_gradients=[tf.constant(3.0), weights])

# A tape of a user's own class, that is asked more than once, and from a graph.
tape, targets = tape_of(FACTOR, persistent=True)
distributed = hvd.DistributedGradientTape(tape)
twice = [form(distributed.gradient(targets[0], {"a": a})) for _ in range(2)]
found["persistent"] = "" if twice[0] == twice[1] else f"{twice}"


@tf.function
def in_a_graph(factor):
    tape, targets = tape_of(factor)
    return hvd.DistributedGradientTape(tape).gradient(targets[0], {"a": a, "more": [b, c]})


plain, targets = tape_of(AVERAGE)
expected = form(plain.gradient(targets[0], {"a": a, "more": [b, c]}))
actual = form(in_a_graph(tf.constant(FACTOR)))
found["in a graph"] = "" if actual == expected else f"{actual}, and not {expected}"

# Sources that stay with their ranks, in any form.
tape, targets = tape_of(FACTOR)
distributed = hvd.DistributedGradientTape(tape)
distributed.register_local_source(b)
gradients = distributed.gradient(targets[0], {"a": a, "b": b})
local = (FACTOR * a / hvd.size()).numpy().tolist()
found["local"] = "" if gradients["b"].numpy().tolist() == local else f"{gradients}"
tape, targets = tape_of(FACTOR)
distributed = hvd.DistributedGradientTape(tape)
distributed.register_local_source(b)
of_local, of_all = distributed.get_local_and_global_gradients(targets[0], {"a": a, "b": b})
parted = [[source for source, _ in part] for part in (of_local, of_all)]
found["parted"] = "" if parted[0][0] is b and parted[1][0] is a else f"{parted}"

# Where ranks disagree which sources are connected, zeros keep them together.
with tf.GradientTape() as tape:
    loss = tf.reduce_sum(a if hvd.rank() == 0 else b)
gradients = hvd.DistributedGradientTape(tape).gradient(loss, [a, b], unconnected_gradients=ZERO)
half = [[1 / hvd.size()] * 2, [1 - 1 / hvd.size()] * 2]
found["connected on one rank"] = "" if list(map(dense, gradients)) == half else f"{gradients}"

ragged = tf.ragged.constant([[1.0], [2.0, 3.0]])
with tf.GradientTape() as tape:
    tape.watch(ragged)
    loss = tf.reduce_sum(ragged)
try:
    hvd.DistributedGradientTape(tape).gradient(loss, ragged)
    found["ragged"] = "was not refused"
except TypeError as error:
    found["ragged"] = "" if "flat_values" in str(error) else str(error)

results.write(hvd.rank(), found=found)
hvd.shutdown()
