"""Keras 3: `model.fit` on all ranks against one process that has the whole batches.

Every rank trains that reference by itself, with an ordinary optimizer, once for all cases that have
the same.
"""

import functools
import sys
from pathlib import Path

import horovod.keras
import horovod.tensorflow as hvd_tensorflow
import horovod.tensorflow.keras as hvd
import keras
import numpy as np
import results
import tensorflow as tf
from horovod.tensorflow.keras import callbacks

hvd.init(process_sets="dynamic")
rank, size = hvd.rank(), hvd.size()
first = hvd.add_process_set([0])
cases = 0

STEPS, BATCH = 6, 8  # batch: of one rank
random = np.random.default_rng(5)
INPUTS = random.standard_normal((STEPS, size, BATCH, 5)).astype("float32")
TARGETS = random.standard_normal((STEPS, size, BATCH, 2)).astype("float32")
WORDS = random.integers(0, 20, (STEPS, size, BATCH, 3))
FACTORS = [0.5**epoch for epoch in range(4)]


def dense(seed=1):
    layers = [keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(2)]
    return started(keras.Sequential([keras.Input((5,)), *layers]), seed)


def words(seed=1):
    layers = [keras.layers.Embedding(20, 4), keras.layers.Flatten(), keras.layers.Dense(2)]
    return started(keras.Sequential([keras.Input((3,), dtype="int32"), *layers]), seed)


def inputs_of(build):
    return WORDS if build is words else INPUTS


def started(model, seed):
    """The model with weights that are the same wherever the seed is."""
    numbers = np.random.default_rng(seed)
    model.set_weights([numbers.standard_normal(w.shape) * 0.5 for w in model.get_weights()])
    return model


def mine(data):
    return data[:, rank].reshape(-1, *data.shape[3:])


def whole(data):
    return data.reshape(-1, *data.shape[3:])


def fit(model, optimizer, inputs, targets, batch, **options):
    eager = options.pop("run_eagerly", False)
    model.compile(optimizer, keras.losses.MeanSquaredError(), run_eagerly=eager)
    return model.fit(inputs, targets, batch_size=batch, shuffle=False, verbose=0, **options)


def same_everywhere(model, case):
    for weights in model.get_weights():
        every = hvd.allgather(weights[None])
        for other in np.array(every):
            np.testing.assert_array_equal(other, weights, err_msg=case)


def agree(case, distributed, reference, tolerance=2e-5):
    global cases
    cases += 1
    same_everywhere(distributed, case)
    for found, expected in zip(distributed.get_weights(), reference.get_weights(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance, err_msg=case)


@functools.cache
def trained_alone(make, build=dense, batches=1):
    """The reference: a model that has seen all ranks' batches, `batches` of them a step."""
    model, data = build(), inputs_of(build)
    fit(model, make(), whole(data), whole(TARGETS), BATCH * size * batches)
    return model


def compare(
    case,
    make,
    reference=None,
    *,
    build=dense,
    tolerance=2e-5,
    batches=1,
    eager=False,
    wrap=hvd.DistributedOptimizer,
    **options,
):
    """Trains with what `wrap` makes of `make()`; the reference with `reference()`."""
    ours = build()
    options = {
        name: o(ours) if callable(o) and name == "groups" else o for name, o in options.items()
    }
    data = inputs_of(build)
    fit(ours, wrap(make(), **options), mine(data), mine(TARGETS), BATCH, run_eagerly=eager)
    agree(case, ours, trained_alone(reference or make, build, batches), tolerance)


def sgd(rate=0.1, **options):
    return keras.optimizers.SGD(rate, **options)


def adam():
    return keras.optimizers.Adam(0.01)


def of_layers(model):
    return [layer.trainable_weights for layer in model.layers[:1]]


def optimizers():
    compare("sgd", sgd)
    compare("momentum", lambda: sgd(momentum=0.9, nesterov=True))
    compare("adam", adam)
    compare("adamw", lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1))
    compare("clipped", lambda: sgd(global_clipnorm=0.1))
    compare("clipped each", lambda: sgd(clipnorm=0.05))
    schedule = keras.optimizers.schedules.ExponentialDecay
    compare("schedule", lambda: sgd(schedule(0.1, 2, 0.5)))
    compare("loss scale", lambda: keras.optimizers.LossScaleOptimizer(adam()))
    compare("eager", sgd, eager=True)
    compare("horovod.keras", sgd, wrap=horovod.keras.DistributedOptimizer)
    compare("horovod.tensorflow", sgd, wrap=hvd_tensorflow.DistributedOptimizer)


def options():
    for name, tolerance in (("fp16", 2e-3), ("bf16", 2e-2)):
        compression = getattr(hvd.Compression, name)
        compare(name, sgd, compression=compression, tolerance=tolerance)
    compare("sum", lambda: sgd(0.1 / size), sgd, op=hvd.Sum)
    compare(
        "sum by horovod.tensorflow",
        lambda: sgd(0.1 / size),
        sgd,
        op=hvd.Sum,
        wrap=hvd_tensorflow.DistributedOptimizer,
    )
    compare("predivided", sgd, gradient_predivide_factor=4.0)
    compare("groups", sgd, groups=2)
    compare("groups of variables", sgd, groups=of_layers)
    compare("groups of variables, eager", sgd, groups=of_layers, eager=True)
    for as_dense in (False, True):
        compare(f"sparse {as_dense}", sgd, build=words, sparse_as_dense=as_dense)


def in_graphs():
    """What no group of the user's holds is reduced by itself, where groups are not fused either."""
    global cases
    for groups, kind in ((None, "HorovodAllreduce"), (2, "HorovodGroupedAllreduce")):
        model = dense()
        optimizer = hvd.DistributedOptimizer(sgd(), groups=groups)
        optimizer.build(model.trainable_variables)

        def step(model=model, optimizer=optimizer):
            optimizer.apply([tf.ones(variable.shape) for variable in model.trainable_variables])

        graph = tf.function(step).get_concrete_function().graph.as_graph_def()
        nodes = [
            *graph.node,
            *(node for inner in graph.library.function for node in inner.node_def),
        ]
        assert {node.op for node in nodes if "Allreduce" in node.op} == {kind}, groups
        cases += 1


def accumulation():
    def together(rate):
        return lambda: sgd(rate, momentum=0.9)

    options = {"backward_passes_per_step": 2, "batches": 2}
    for eager in (False, True):
        compare(
            "passes averaged",
            together(0.1),
            eager=eager,
            average_aggregated_gradients=True,
            **options,
        )
        compare("passes summed", together(0.05), together(0.1), eager=eager, **options)
    compare(
        "passes, clipped",
        lambda: sgd(global_clipnorm=0.1),
        batches=2,
        backward_passes_per_step=2,
        average_aggregated_gradients=True,
    )
    compare("accumulation of Keras", lambda: sgd(gradient_accumulation_steps=2), sgd, batches=2)


def sets():
    """Rank 0 is alone in its set, and rank 1 in none: each trains for itself."""
    global cases
    ours, theirs = dense(), dense()
    fit(
        ours, hvd.DistributedOptimizer(sgd(), process_set=first), mine(INPUTS), mine(TARGETS), BATCH
    )
    fit(theirs, sgd(), mine(INPUTS), mine(TARGETS), BATCH)
    for found, expected in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-5)
    cases += 1


def own_loops():
    """A user's own loop, with `apply` and `apply_gradients`."""
    for how in ("eager", "function"):
        for call in ("apply", "apply_gradients"):
            ours = dense()
            optimizer = hvd.DistributedOptimizer(sgd())
            optimizer.build(ours.trainable_variables)

            def step(inputs, targets, model=ours, optimizer=optimizer, call=call):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(tf.square(model(inputs) - targets))
                gradients = tape.gradient(loss, model.trainable_variables)
                if call == "apply":
                    optimizer.apply(gradients)
                else:
                    optimizer.apply_gradients(
                        zip(gradients, model.trainable_variables, strict=True)
                    )

            run = tf.function(step) if how == "function" else step
            for inputs, targets in zip(INPUTS[:, rank], TARGETS[:, rank], strict=True):
                run(tf.constant(inputs), tf.constant(targets))
            agree(f"{call} {how}", ours, trained_alone(sgd))


def trained_with_tape(how, grouped):
    """The distributed tape, given the variables of a model, and an ordinary optimizer."""
    ours = dense(seed=1 + rank)
    hvd_tensorflow.broadcast_variables(ours.variables, root_rank=0, inplace=how == "eager")
    optimizer = sgd()
    optimizer.build(ours.trainable_variables)
    options = {"groups": of_layers(ours)} if grouped else {}

    def step(inputs, targets):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(ours(inputs) - targets))
        tape = hvd_tensorflow.DistributedGradientTape(tape, **options)
        variables = ours.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    run = tf.function(step) if how == "function" else step
    for inputs, targets in zip(INPUTS[:, rank], TARGETS[:, rank], strict=True):
        run(tf.constant(inputs), tf.constant(targets))
    agree(f"tape {how} {grouped}", ours, trained_alone(sgd))


def tapes():
    global cases
    for how, grouped in (("eager", False), ("function", False), ("function", True)):
        trained_with_tape(how, grouped)
    model = dense()
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(INPUTS[0, rank]) - TARGETS[0, rank]))
    tape = hvd_tensorflow.PartialDistributedGradientTape(tape, local_layers=model.layers[0])
    for variable, gradient in zip(
        model.trainable_variables, tape.gradient(loss, model.trainable_variables), strict=True
    ):
        every = np.array(hvd.allgather(gradient[None]))
        local = any(variable is of_layer for of_layer in model.layers[0].trainable_variables)
        assert np.array_equal(every[0], every[1]) != local, variable.path
    cases += 1


def local_layers():
    global cases
    model = dense()
    optimizer = horovod.keras.PartialDistributedOptimizer(sgd(), local_layers=model.layers[0])
    fit(model, optimizer, mine(INPUTS), mine(TARGETS), BATCH)
    for i, layer in enumerate(model.layers):
        every = np.array(hvd.allgather(layer.get_weights()[0][None]))
        assert np.array_equal(every[0], every[1]) == (i == 1), layer.name
    cases += 1


class Seen(keras.callbacks.Callback):
    """The learning rate of each batch, and the logs of each epoch."""

    def __init__(self):
        super().__init__()
        self.rates, self.logs = [], []

    def on_train_batch_begin(self, batch, logs=None):
        self.rates.append(float(self.model.optimizer.learning_rate))

    def on_epoch_end(self, epoch, logs=None):
        self.logs.append({name: float(value) for name, value in logs.items()})


def used_callbacks():
    global cases
    model = dense(seed=rank)
    state = {"momentum": 0.9}
    seen = Seen()
    fit(
        model,
        hvd.DistributedOptimizer(sgd(**state)),
        mine(INPUTS),
        mine(TARGETS),
        BATCH,
        epochs=2,
        callbacks=[
            callbacks.BroadcastGlobalVariablesCallback(0),
            callbacks.MetricAverageCallback(),
            callbacks.LearningRateWarmupCallback(0.1, warmup_epochs=2, momentum_correction=False),
            seen,
        ],
    )
    same_everywhere(model, "broadcast")
    for slot in model.optimizer.variables:
        every = np.array(hvd.allgather(slot.numpy()[None]))
        np.testing.assert_array_equal(every[0], every[1])
    warmed = [0.1 / size * ((i + 1) * (size - 1) / (2 * STEPS) + 1) for i in range(2 * STEPS)]
    np.testing.assert_allclose(seen.rates, warmed, rtol=1e-5)
    for logs in seen.logs:
        every = np.array(hvd.allgather(np.array([logs["loss"]])))
        assert every[0] == every[1]
        assert 0 < logs["lr"] < 0.1001
    cases += 1


def corrected_momentum():
    """A schedule, with momentum correction, against the same by hand; the model is a line."""
    global cases
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(2, use_bias=False)])
    started(model, 3)
    weights, speed = model.get_weights()[0].astype("float64"), 0.0
    rate = 0.1
    for factor in FACTORS:
        for batch, (inputs, targets) in enumerate(zip(INPUTS, TARGETS, strict=True)):
            inputs, targets = whole(inputs[None]), whole(targets[None])
            slope = 2 * inputs.T @ (inputs @ weights - targets) / targets.size
            momentum = 0.9 * (0.1 * factor / rate if batch == 0 else 1)
            rate = 0.1 * factor
            speed = momentum * speed - rate * slope
            weights = weights + speed
    schedule = callbacks.LearningRateScheduleCallback(0.1, lambda epoch: FACTORS[epoch])
    fit(
        model,
        hvd.DistributedOptimizer(sgd(momentum=0.9)),
        mine(INPUTS),
        mine(TARGETS),
        BATCH,
        epochs=len(FACTORS),
        callbacks=[schedule],
    )
    same_everywhere(model, "schedule")
    np.testing.assert_allclose(model.get_weights()[0], weights, rtol=0, atol=1e-4)
    cases += 1


def saved(folder):
    """Trained, saved, loaded and trained on, by Horovod and by Keras alone."""
    ours, theirs = dense(), dense()
    fit(ours, hvd.DistributedOptimizer(adam()), mine(INPUTS), mine(TARGETS), BATCH)
    fit(theirs, adam(), whole(INPUTS), whole(TARGETS), BATCH * size)
    path = folder / f"saved{rank}.keras"
    ours.save(path)
    plain = keras.models.load_model(path)
    assert type(plain.optimizer) is keras.optimizers.Adam
    assert int(plain.optimizer.iterations) == STEPS
    loaded = hvd.load_model(path)
    for model, data, batch in ((loaded, mine, BATCH), (theirs, whole, BATCH * size)):
        model.fit(data(INPUTS), data(TARGETS), batch_size=batch, shuffle=False, verbose=0)
    agree("loaded", loaded, theirs)


def refusals():
    global cases

    def refuse(text, make, **options):
        try:
            hvd.DistributedOptimizer(make(), **options)
        except ValueError as error:
            assert text in str(error), error
        else:
            raise AssertionError(f"should be refused: {text}")

    scaled = keras.optimizers.LossScaleOptimizer
    refuse("cannot accumulate", lambda: scaled(sgd()), backward_passes_per_step=2)
    refuse("either", lambda: sgd(gradient_accumulation_steps=2), backward_passes_per_step=2)
    keras.config.set_dtype_policy("mixed_float16")
    refuse("LossScaleOptimizer(optimizer)", sgd)
    keras.config.set_dtype_policy("float32")
    cases += 1


def elastic_state(optimizer):
    global cases
    model = dense(seed=rank)
    fit(model, optimizer, mine(INPUTS), mine(TARGETS), BATCH)
    started(model, rank)
    state = hvd.elastic.KerasState(model, epoch=rank)
    state.sync()
    same_everywhere(model, "synchronized")
    assert state.epoch == 0
    kept = model.get_weights()
    moments = [variable.numpy() for variable in optimizer.variables]
    started(model, 9)
    for variable in optimizer.variables:
        variable.assign(variable + 1)
    state.restore()
    for found, expected in zip(model.get_weights(), kept, strict=True):
        np.testing.assert_array_equal(found, expected)
    for variable, expected in zip(optimizer.variables, moments, strict=True):
        np.testing.assert_array_equal(variable.numpy(), expected)
    cases += 1


optimizers()
options()
in_graphs()
accumulation()
sets()
own_loops()
tapes()
local_layers()
used_callbacks()
corrected_momentum()
saved(Path(sys.argv[1]))
refusals()
elastic_state(hvd.DistributedOptimizer(adam()))
elastic_state(adam())  # where the tape is the distributed one
results.write(rank, cases=cases)
