"""Keras 3 under horovod.keras and horovod.tensorflow.keras.

Horovod 0.28.1 overrides what the optimizers of Keras 2 call; Keras 3 calls none of it. Here is what
overrides `apply()` of Keras 3 instead. It imports Keras and TensorFlow only when it is called, and
nothing of ringcoll: all backends of Horovod use it.
"""

import os
import sys
import types


def is_keras3_module(keras):
    return int(getattr(keras, "__version__", "0").split(".")[0]) >= 3


def is_keras3(thing):
    """True for an optimizer or a model of Keras 3."""
    keras = sys.modules.get("keras")
    if not is_keras3_module(keras):
        return False
    return isinstance(thing, (keras.optimizers.Optimizer, keras.Model))


def native(thing):
    """The tf.Variable of a variable of Keras 3; anything else as it is."""
    keras = sys.modules.get("keras")
    is_variable = is_keras3_module(keras) and isinstance(thing, keras.Variable)
    return thing.value if is_variable else thing


def variables_of(optimizer):
    """The variables of an optimizer: Keras 3 has a property where Keras 2 has a method."""
    variables = optimizer.variables
    return variables() if callable(variables) else variables


class _Reduction:
    """What DistributedOptimizer was asked for: combines the gradients of all ranks."""

    def __init__(
        self,
        *,
        name,
        op,
        groups,
        process_set,
        compression,
        sparse_as_dense,
        device_dense,
        device_sparse,
        gradient_predivide_factor,
        scale_local_gradients,
    ):
        import horovod.tensorflow as hvd
        import tensorflow as tf

        before = after = 1.0
        if op == hvd.Average:
            before, after = 1.0 / gradient_predivide_factor, gradient_predivide_factor
        self._arguments = {
            "op": op,
            "process_set": process_set,
            "compression": compression,
            "device_dense": device_dense,
            "device_sparse": device_sparse,
            "prescale_factor": before,
            "postscale_factor": after,
        }
        self._name = name
        self._groups = groups
        self._process_set = process_set
        self._sparse_as_dense = sparse_as_dense
        self._scale_local_gradients = scale_local_gradients
        self._local = set()
        # Eagerly the reductions would wait for one another.
        self._at_once = tf.function(self._reduce)

    def add_local(self, variable):
        self._local.add(native(variable).ref())

    def __call__(self, gradients, variables):
        """The gradients to apply to the variables, in their order; None stays None."""
        import tensorflow as tf

        result = list(gradients)
        shared = []
        for i, variable in enumerate(variables):
            if result[i] is None:
                continue
            if native(variable).ref() in self._local:
                result[i] = self._scaled(result[i])
                continue
            if self._sparse_as_dense:
                result[i] = tf.convert_to_tensor(result[i])
            shared.append(i)
        reduce = self._at_once if tf.executing_eagerly() else self._reduce
        groups = self._grouped(shared, variables)
        reduced = reduce([[result[i] for i in group] for group in groups])
        for group, gradients_of_group in zip(groups, reduced, strict=True):
            for i, gradient in zip(group, gradients_of_group, strict=True):
                result[i] = gradient
        return result

    def _grouped(self, shared, variables):
        """The numbers in `shared` in groups; what is in no group of the user's is one by itself."""
        from horovod.common.util import split_list

        if self._groups is None:
            return [[i] for i in shared]
        if not isinstance(self._groups, list):
            return [group for group in split_list(shared, self._groups) if group]
        group_of = {
            native(variable).ref(): number
            for number, group in enumerate(self._groups)
            for variable in group
        }
        groups = {}
        for i in shared:
            groups.setdefault(group_of.get(native(variables[i]).ref(), -1 - i), []).append(i)
        return list(groups.values())

    def _reduce(self, groups):
        import horovod.tensorflow as hvd
        import tensorflow as tf

        with tf.name_scope(self._name + "_Allreduce"):
            if self._groups is None:
                return [[hvd._allreduce_cond(g, **self._arguments)] for (g,) in groups]
            return [hvd._grouped_allreduce_cond(group, **self._arguments) for group in groups]

    def _scaled(self, gradient):
        """A gradient that stays on this rank, as large as its part of an average."""
        import horovod.tensorflow as hvd
        import tensorflow as tf

        if not self._scale_local_gradients:
            return gradient
        size = self._process_set.size()
        if int(os.environ.get("HOROVOD_ELASTIC", 0)):
            size = hvd.size_op(process_set_id=self._process_set.process_set_id)
        if isinstance(gradient, tf.IndexedSlices):
            return tf.IndexedSlices(
                self._divided(gradient.values, size), gradient.indices, gradient.dense_shape
            )
        return self._divided(gradient, size)

    @staticmethod
    def _divided(tensor, size):
        import tensorflow as tf

        return tensor / tf.cast(size, tensor.dtype)


class _Distributed:
    """What every distributed optimizer has, besides what it is of Keras."""

    @property
    def variables(self):
        # Horovod's callbacks and states call it, as Keras 2 had it.
        from horovod._keras import CallableList

        return CallableList(super().variables)

    def register_local_var(self, var):
        """Leaves the gradient of a variable out of the reduction."""
        self.horovod_reduction.add_local(var)


class _Immediate(_Distributed):
    """Reduces whatever is applied."""

    def apply(self, grads, trainable_variables=None):
        variables = self._trainable_variables
        if trainable_variables is not None:
            variables = trainable_variables = list(trainable_variables)
        return super().apply(self.horovod_reduction(grads, variables), trainable_variables)


class _Accumulating(_Distributed):
    """Reduces what has been accumulated, every so many steps, before it is clipped."""

    def _backend_apply_gradients(self, grads, trainable_variables):
        self.horovod_variables[:] = trainable_variables
        super()._backend_apply_gradients(grads, trainable_variables)

    def _clip_gradients(self, grads):
        # Keras has made them a mean.
        if self.horovod_sum:
            grads = [g * self.gradient_accumulation_steps for g in grads]
        return super()._clip_gradients(self.horovod_reduction(grads, self.horovod_variables))


def _check(keras, optimizer, backward_passes_per_step):
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            f"Keras runs on {keras.backend.backend()} here, and Horovod averages gradients of "
            "Keras on TensorFlow: set KERAS_BACKEND=tensorflow"
        )
    scales_loss = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if keras.config.dtype_policy().name == "mixed_float16" and not scales_loss:
        raise ValueError(
            "With mixed_float16 Keras would wrap this optimizer in a LossScaleOptimizer, whose "
            "ranks could disagree whether to apply a step. Wrap it yourself: "
            "DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))"
        )
    if backward_passes_per_step == 1:
        return
    config = optimizer.get_config()
    if "gradient_accumulation_steps" not in config or not hasattr(optimizer, "_clip_gradients"):
        raise ValueError(
            f"{type(optimizer).__name__} cannot accumulate gradients: set "
            "gradient_accumulation_steps of the optimizers in it, and leave out "
            "backward_passes_per_step"
        )
    if config["gradient_accumulation_steps"]:
        raise ValueError(
            "Set either gradient_accumulation_steps of the optimizer or backward_passes_per_step"
        )
    if optimizer.built:
        raise ValueError(
            "An optimizer that has been used cannot begin to accumulate gradients: leave out "
            "backward_passes_per_step, or make a new optimizer"
        )


def distributed_optimizer(
    optimizer, *, name, backward_passes_per_step, average_aggregated_gradients, **options
):
    """The optimizer with gradients reduced over the ranks, with the state that it has.

    It is of a class with the same name and place, so that what is saved can be loaded without
    Horovod. Raises ValueError with the remedy for what cannot be done right.
    """
    keras = sys.modules["keras"]
    _check(keras, optimizer, backward_passes_per_step)
    base = type(optimizer)
    config = optimizer.get_config()
    if backward_passes_per_step > 1:
        config["gradient_accumulation_steps"] = backward_passes_per_step
    attributes = {
        "__module__": base.__module__,
        "horovod_reduction": _Reduction(name=name or f"Distributed{base.__name__}", **options),
        "horovod_sum": backward_passes_per_step > 1 and not average_aggregated_gradients,
        "horovod_variables": [],
    }
    mixin = _Accumulating if config.get("gradient_accumulation_steps") else _Immediate
    cls = types.new_class(base.__name__, (mixin, base), {}, lambda body: body.update(attributes))
    distributed = cls.from_config(config)
    if optimizer.built:
        distributed.build(optimizer._trainable_variables)
        for ours, theirs in zip(distributed.variables, optimizer.variables, strict=True):
            ours.assign(theirs)
    return distributed


def load_model(keras, wrap_optimizer, filepath, custom_optimizers, custom_objects):
    """A saved model of Keras 3, whose optimizer is made a distributed one as it comes."""
    objects = {cls.__name__: cls for cls in custom_optimizers or ()}
    model = keras.models.load_model(filepath, custom_objects={**objects, **(custom_objects or {})})
    if getattr(model, "optimizer", None) is not None:
        model.optimizer = wrap_optimizer(lambda: model.optimizer)()
    return model


def broadcast(model, optimizer, root_rank, local_variables=()):
    """Broadcasts weights and state; False, and nothing done, if the model is not of Keras 3.

    The states of random generators and metrics are each rank's own. `local_variables` are
    references to tf.Variables that are left out.
    """
    import horovod.tensorflow as hvd

    if not is_keras3(model):
        return False
    variables = [native(variable) for variable in [*model.weights, *optimizer.variables]]
    hvd.broadcast_variables(
        [variable for variable in variables if variable.ref() not in local_variables],
        root_rank=root_rank,
    )
    return True


class _Backend:
    """The functions of Keras 2's backend that Horovod's callbacks call."""

    @staticmethod
    def constant(value, name=None):
        import tensorflow as tf

        return tf.constant(value, dtype="float32", name=name)

    @staticmethod
    def get_value(variable):
        return float(variable)

    @staticmethod
    def set_value(variable, value):
        if not hasattr(variable, "assign"):
            raise ValueError(
                "The learning rate of this optimizer is a schedule; leave out Horovod's callbacks "
                "for the learning rate, or give the optimizer a number"
            )
        variable.assign(value)


def backend_of(keras):
    """What Horovod's callbacks use as the backend of this Keras."""
    return _Backend if is_keras3_module(keras) else keras.backend


def correct_momentum(optimizer, old_rate, new_rate):
    """Momentum correction for one step, of SGD and RMSprop.

    Where the coefficient is a number, Keras has compiled it in. That number times the ratio of the
    learning rates, for one step, is the same as accumulated momentum times that ratio (but for
    Nesterov's look-ahead). False, and nothing done, where it is a variable or there is none.
    """
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    if not isinstance(getattr(optimizer, "momentum", None), (int, float)):
        return False
    for place in ("momentums", "_momentums"):
        for accumulated in getattr(optimizer, place, ()):
            accumulated.assign(accumulated * (new_rate / old_rate))
    return True
