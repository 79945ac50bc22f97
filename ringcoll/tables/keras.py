"""Parameter tables in programs of Keras 3, on the backends torch and TensorFlow: a layer whose rows
live in a table, and a callback that pushes their gradients after each batch.

>>> embedding = Embedding(store.table("words", row_shape=64, rule=ringcoll.rules.Adagrad(lr=0.1)))
>>> model = keras.Sequential([embedding, keras.layers.Flatten(), keras.layers.Dense(1)])
>>> model.compile("adam", "mse")
>>> model.fit(x, y, callbacks=[Steps(embedding)])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import keras
import numpy

from ringcoll.errors import InvalidArgument
from ringcoll.tables.gradients import Gradients
from ringcoll.tables.table import Table

if TYPE_CHECKING:
    from ringcoll.weights.store import Store

__all__ = ["Embedding", "Steps"]


class _Rows(Protocol):
    """The rows of a table, for one backend."""

    def look_up(self, ids: Any, training: bool) -> Any: ...
    def step(self, scale: float) -> None: ...


class _TorchRows:
    """A module of torch does it all. Keras would track it if it were an attribute of a layer."""

    def __init__(self, table: Table) -> None:
        from ringcoll.tables.torch import Embedding

        self._module = Embedding(table)

    def look_up(self, ids: Any, training: bool) -> Any:
        return self._module.train(training)(ids)

    def step(self, scale: float) -> None:
        self._module.step(scale)


class _TensorFlowRows:
    """Functions in Python that a graph calls. A tape differentiates only what depends on a
    variable, so the layer has one, ``anchor``, whose gradient is zero."""

    def __init__(self, table: Table, anchor: Any) -> None:
        import tensorflow

        self._tf, self._table, self._anchor = tensorflow, table, anchor
        self._gradients = Gradients(table)

    def look_up(self, ids: Any, training: bool) -> Any:
        tf, table = self._tf, self._table

        def rows_of(ids: Any, anchor: Any) -> tuple[Any, Any]:
            rows = tf.numpy_function(self._pull, [ids], table.dtype)
            rows.set_shape((*ids.shape, *(table.row_shape or ())))

            def gradient(of_rows: Any) -> tuple[None, Any]:
                return None, tf.numpy_function(self._collect, [ids, of_rows], anchor.dtype)

            return rows, gradient

        return tf.custom_gradient(rows_of)(ids, tf.convert_to_tensor(self._anchor))

    def step(self, scale: float) -> None:
        self._gradients.push(scale)

    def _pull(self, ids: Any) -> Any:
        unique, places = numpy.unique(ids, return_inverse=True)
        return self._table.pull(unique)[places.reshape(ids.shape)]

    def _collect(self, ids: Any, of_rows: Any) -> Any:
        """Keeps gradients. Returns that of the anchor."""
        self._gradients.add(ids.reshape(-1), of_rows.reshape(ids.size, -1))
        return numpy.float32(0)


class Embedding(keras.layers.Layer):  # type: ignore[misc]
    """An embedding whose rows live in a sparse table. Any integer of 64 bits is the id of a row.
    The rows are no weights of the model: they are in the store, not in the model's files.

    What training computes of gradients is pushed by :class:`Steps`, which must be among the
    callbacks of ``fit``, or by :meth:`step` in a loop of one's own.
    """

    def __init__(self, table: Table, **options: Any) -> None:
        if table.row_shape is None or len(table.row_shape) != 1 or "float" not in table.dtype:
            raise InvalidArgument(
                f"an embedding wants a sparse table with rows of one dimension, such as "
                f"row_shape=64, and a floating-point type, not {table!r}"
            )
        backend = keras.config.backend()
        if backend not in ("torch", "tensorflow"):
            raise InvalidArgument(
                f"Keras runs on {backend}, and rows of tables are for the backends torch and "
                "tensorflow: set KERAS_BACKEND to one of them"
            )
        super().__init__(**options)
        self.table = table
        self.supports_jit = False  # XLA does not call functions in Python
        self._rows: _Rows
        if backend == "torch":
            self._rows = _TorchRows(table)
        else:
            anchor = self.add_weight(shape=(), initializer="zeros", dtype="float32", name="anchor")
            self._rows = _TensorFlowRows(table, anchor.value)
        self.built = True

    def call(self, ids: Any, training: bool = False) -> Any:
        """The rows of ids, in their shape with one more dimension."""
        return keras.ops.cast(self._rows.look_up(ids, bool(training)), self.compute_dtype)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return (*input_shape, *(self.table.row_shape or ()))

    def step(self, scale: float = 1.0) -> None:
        """Pushes the gradients since the last step, times ``scale``, as one push, and finishes the
        worker's clock if the table has clocks. See :meth:`ringcoll.tables.torch.Embedding.step`."""
        self._rows.step(scale)


class Steps(keras.callbacks.Callback):  # type: ignore[misc]
    """Pushes the gradients of layers after each batch, as a step of training. With ``store``, it
    also commits a version after every ``epochs`` epochs; the number of the newest one is
    ``version``. All ranks of the store have the callback then."""

    def __init__(
        self, *layers: Embedding, scale: float = 1.0, store: Store | None = None, epochs: int = 1
    ) -> None:
        super().__init__()
        self._layers, self._scale, self._store, self._epochs = layers, scale, store, epochs
        self.version: int | None = None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        for layer in self._layers:
            layer.step(self._scale)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        for layer in self._layers:
            layer.table.flush()
        if self._store is not None and (epoch + 1) % self._epochs == 0:
            self.version = self._store.commit({"epoch": epoch})
