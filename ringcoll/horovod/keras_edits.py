"""Edits for Keras 3 in Horovod 0.28.1: code for Keras 2 calls ringcoll_keras.py instead."""

from __future__ import annotations

from .anchored import Edit

_IMPL = "horovod/_keras/__init__.py"
_CALLBACKS = "horovod/_keras/callbacks.py"
_OPTIMIZER = """    if ringcoll_keras.is_keras3(optimizer):
        return ringcoll_keras.distributed_optimizer(
            optimizer,
            name=name,
            device_dense=device_dense,
            device_sparse=device_sparse,
            compression=compression,
            sparse_as_dense=sparse_as_dense,
            gradient_predivide_factor=gradient_predivide_factor,
            op=op,
            backward_passes_per_step=backward_passes_per_step,
            average_aggregated_gradients=average_aggregated_gradients,
            groups=groups,
            process_set=process_set,
            scale_local_gradients=scale_local_gradients)

"""
_LOAD = """    if ringcoll_keras.is_keras3_module(keras):
        return ringcoll_keras.load_model(
            keras, wrap_optimizer, filepath, custom_optimizers, custom_objects)
"""
_IMPORT = "from horovod.common import ringcoll_keras\n"
_TAPE = "horovod/tensorflow/__init__.py"
# Horovod's gradient() handles a list of variables. It becomes _gradient_of_list(), which a new
# gradient() calls.
_GRADIENT = """,
                     unconnected_gradients=tf.UnconnectedGradients.NONE):
            def of_list(*arguments):
                return self._gradient_of_list(target, output_gradients, *arguments)

            return ringcoll_tape.gradient(
                of_list, sources, use_generic_names, unconnected_gradients)

        def _gradient_of_list(self, target, output_gradients, sources, use_generic_names,
                              unconnected_gradients"""

KERAS_EDITS = [
    Edit(_IMPL, r"^import horovod\.tensorflow as hvd\n", _IMPORT, "before"),
    Edit(_IMPL, r"^    class _DistributedOptimizer\(", _OPTIMIZER, "before"),
    Edit(_IMPL, r"^    if legacy_opts:\n", _LOAD, "before"),
    # --- Callbacks --------------------------------------------------------------------------------
    Edit(_CALLBACKS, r"^import horovod\.tensorflow as hvd\n", _IMPORT, "before"),
    Edit(
        _CALLBACKS,
        r"^            (?=if hvd\._executing_eagerly\(\) and hasattr)",
        "if ringcoll_keras.broadcast(self.model, self.model.optimizer,\n"
        "                                        self.root_rank, self._local_vars):\n"
        "                pass\n"
        "            el",
    ),
    Edit(
        _CALLBACKS,
        r"^        if hasattr\(self\.model\.optimizer, 'momentum'\)",
        "        if self.momentum_correction and ringcoll_keras.correct_momentum(\n"
        "                self.model.optimizer, old_lr, new_lr):\n"
        "            return\n",
        "before",
    ),
    # Keras 3 has only the name learning_rate, and Keras 2 has it too.
    *(
        Edit(_CALLBACKS, rf"(?<={before}\(self\.model\.optimizer\.)lr", "learning_rate", "instead")
        for before in (
            r"old_lr = self\.backend\.get_value",
            r"        self\.backend\.set_value",
            r"            self\.initial_lr = self\.backend\.get_value",
            r"logs\['lr'\] = self\.backend\.get_value",
            r"            new_lr = self\.backend\.get_value",
        )
    ),
    # `keras.backend` belongs to Keras 3, even if tf.keras is Keras 2.
    *(
        Edit(
            f"horovod/{package}/callbacks.py",
            r"^from horovod\._keras import callbacks as _impl\n",
            f"{_IMPORT}\nK = ringcoll_keras.backend_of(keras)\n",
        )
        for package in ("keras", "tensorflow/keras")
    ),
    # --- Elastic states ---------------------------------------------------------------------------
    Edit(
        "horovod/tensorflow/elastic.py",
        r"^from horovod\.common\.elastic import run_fn",
        _IMPORT,
        "before",
    ),
    Edit(
        "horovod/tensorflow/elastic.py",
        r"^def _broadcast_model\(model, optimizer, backend\):\n",
        "    if ringcoll_keras.broadcast(model, optimizer, 0):\n        return\n",
    ),
    # The optimizer of a state need not be distributed, since a tape may be.
    *(
        Edit(
            "horovod/tensorflow/elastic.py",
            rf"(?<={before})self\.optimizer\.variables\(\)",
            "ringcoll_keras.variables_of(self.optimizer)",
            "instead",
        )
        for before in (
            r"tf\.identity\(var\) for var in ",
            r"var\.numpy\(\) for var in ",
            r"for var, saved_var in zip\(",
        )
    ),
    # --- horovod.tensorflow, given variables of Keras 3 -------------------------------------------
    *(
        Edit(f"horovod/tensorflow/{file}.py", anchor, _IMPORT, "before")
        for file, anchor in (
            ("__init__", r"^from horovod\.tensorflow\.util import _executing_eagerly, _make_sub"),
            ("functions", r"^from horovod\.tensorflow\.util import _cache, _executing"),
            ("util", r"^from tensorflow\.python\.eager import context"),
        )
    ),
    Edit(
        "horovod/tensorflow/functions.py",
        r"^    if inplace:\n        vars_by_device = ",
        "    variables = [ringcoll_keras.native(variable) for variable in variables]\n",
        "before",
    ),
    # --- Tapes, given sources of every form -------------------------------------------------------
    Edit(
        _TAPE,
        r"^from horovod\.tensorflow\.compression import Compression\n",
        "from horovod.common import ringcoll_tape\n",
        "before",
    ),
    Edit(
        _TAPE,
        r"(?<=        def gradient\(self, target, sources, output_gradients=None, "
        r"use_generic_names=False)(?=\):$)",
        _GRADIENT,
    ),
    Edit(
        _TAPE,
        r"(?<=super\(self\.__class__, self\)\.gradient\(target, sources, output_gradients)(?=\))",
        ", unconnected_gradients",
    ),
    Edit(
        _TAPE,
        r"(?<=            for s, g in )zip\(sources, gradients\)",
        "ringcoll_tape.pairs(sources, gradients)",
        "instead",
    ),
    # A group may be empty, if its variables have no gradients or are not among the sources.
    Edit(
        _TAPE,
        r"^                reduce_ops = \[None\] \* len\(vars\)\n",
        "                if isinstance(groups, list):\n"
        "                    grads_split = ringcoll_tape.in_groups(groups, vars, grads)\n"
        "                grads_split = [group for group in grads_split if group]\n",
        "before",
    ),
    *(
        Edit(f"horovod/tensorflow/{file}.py", rf"{variable}(?={rest})", native, "instead")
        for file, variable, rest, native in (
            ("util", "vars", r"\.ref\(\)", "ringcoll_keras.native(vars)"),
            (
                "__init__",
                r"(?<=_local_sources\.add\()source",
                r"\.ref\(\)\)",
                "ringcoll_keras.native(source)",
            ),
            (
                "__init__",
                r"(?<=is_local_source = )s",
                r"\.ref\(\) in self\._local_sources if _IS_TF2",
                "ringcoll_keras.native(s)",
            ),
        )
    ),
    # --- horovod.tensorflow.DistributedOptimizer(), which does not pass on two options ------------
    Edit(
        "horovod/tensorflow/__init__.py",
        r"^        return hvd_k\.DistributedOptimizer\(\n",
        "            op=op,\n            groups=groups,\n",
    ),
]
