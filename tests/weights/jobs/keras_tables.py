"""Trains a model of Keras whose embedding is a table beside one with Keras's own embedding, and
prints how they compare, as JSON. Words: "fit", "eager" or "refused"."""

import json
import sys

import keras
import numpy

import ringcoll
from ringcoll import rules
from ringcoll.tables import Uniform
from ringcoll.tables.keras import Embedding, Steps

ROWS, WIDTH, LR = 20, 4, 0.1


def model_of(embedding, eager):
    keras.utils.set_random_seed(3)
    ids = keras.Input((3,), dtype="int32")
    both = keras.layers.Concatenate()([embedding(ids), embedding((ids + 1) % ROWS)])  # used twice
    model = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(both)))
    model.compile(keras.optimizers.SGD(LR), "mse", run_eagerly=eager)
    return model


def compare(store, eager):
    initial = Uniform(-1, 1, seed=5)
    table = store.table("rows", row_shape=WIDTH, rule=rules.SGD(lr=LR), initial=initial)
    everything = numpy.arange(ROWS)
    own = keras.layers.Embedding(ROWS, WIDTH)
    theirs = model_of(own, eager)
    own.set_weights([table.pull(everything)])
    layer = Embedding(table)
    ours = model_of(layer, eager)

    random = numpy.random.default_rng(7)
    x = random.integers(0, ROWS, (32, 3)).astype("int32")
    y = random.random((32, 1)).astype("float32")
    options = {"batch_size": 8, "epochs": 2, "verbose": 0, "shuffle": False}
    wanted = theirs.fit(x, y, validation_data=(x, y), **options)
    steps = Steps(layer, store=store, epochs=2)
    found = ours.fit(x, y, validation_data=(x, y), callbacks=[steps], **options)
    return {
        "losses": found.history["loss"] + found.history["val_loss"],
        "wanted": wanted.history["loss"] + wanted.history["val_loss"],
        "rows": float(abs(table.pull(everything) - own.get_weights()[0]).max()),
        "version": steps.version,
        "weights": [list(weight.shape) for weight in layer.weights],
        "output": list(ours.layers[-1].output.shape),
    }


def main():
    with (
        ringcoll.init(rank=0, size=1) as world,
        ringcoll.Store("keras", world, key="key") as store,
    ):
        if sys.argv[1] == "refused":
            keras.config.backend = lambda: "jax"  # without one that is installed
            try:
                Embedding(store.table("rows", row_shape=WIDTH))
            except ringcoll.InvalidArgument as error:
                print(json.dumps({"message": str(error)}))
        else:
            print(json.dumps(compare(store, sys.argv[1] == "eager")))


main()
