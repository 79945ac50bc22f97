"""Edits of horovod.torch 0.28.1: its optimizers keep the features of torch's, and tensors with the
negative bit are handled.

Some comments describe Horovod without the edit.
"""

from __future__ import annotations

from .anchored import Edit

_OPTIMIZER = "horovod/torch/optimizer.py"
_FUNCTIONS = "horovod/torch/functions.py"
_MPI_OPS = "horovod/torch/mpi_ops.py"
_IMPORT = "from horovod.common import ringcoll_torch\n"

# Both optimizer classes have methods with the same names. The text that follows distinguishes them.
_LAST_OF_DISTRIBUTED = r"(?=\):\n(?:.+\n)+\n\nclass _DistributedAdasumOptimizer)"
_LAST_OF_ADASUM = r"(?=\):\n(?:.+\n)+\n\ndef DistributedOptimizer)"

OPTIMIZER_EDITS = [
    Edit(_OPTIMIZER, r"^from horovod\.torch\.compression import Compression\n", _IMPORT, "before"),
    # A closure computes gradients within the step, so the step waits for them after the closure.
    Edit(
        _OPTIMIZER,
        r"(?<=        if self\._should_synchronize)(?=:\n            if self\._synchronized)",
        " and (closure is None or self._handles)",
    ),
    Edit(
        _OPTIMIZER,
        r"(?<=return super\(self\.__class__, self\)\.step\()closure",
        "ringcoll_torch.reducing(self, closure)",
        "instead",
    ),
    Edit(
        _OPTIMIZER,
        r"^    def step\(self, closure=None\):\n(?=        if self\._should_synchronize)",
        "    @ringcoll_torch.hooked_inside\n",
        "before",
    ),
    # zero_grad() passes on the arguments of torch's zero_grad().
    *(
        Edit(_OPTIMIZER, rf"(?<=    def zero_grad\(self){rest}", ", *args, **options")
        for rest in (_LAST_OF_DISTRIBUTED, _LAST_OF_ADASUM)
    ),
    *(
        Edit(
            _OPTIMIZER,
            rf"(?<=return super\(self\.__class__, self\)\.zero_grad\()(?=\)\n\n\n{rest})",
            "*args, **options",
        )
        for rest in ("class _DistributedAdasumOptimizer", "def DistributedOptimizer")
    ),
    # Horovod makes a new optimizer from the parameters alone. This keeps the wrapped one's state.
    *(
        Edit(
            _OPTIMIZER,
            rf"(?<=        return )(?=cls\(optimizer\.param_groups{rest})",
            "ringcoll_torch.keeping_state(optimizer, ",
        )
        for rest in (r".*backward_passes_per_step, op,$", r".*backward_passes_per_step\)$")
    ),
    Edit(_OPTIMIZER, r"gradient_predivide_factor, groups, sparse_as_dense, process_set\)$", ")"),
    Edit(
        _OPTIMIZER,
        r"(?<=        return )cls\(optimizer\.param_groups.*backward_passes_per_step\)$",
        ")",
    ),
    # A gradient may have the negative bit, for instance that of an imaginary part.
    Edit(
        _OPTIMIZER,
        r"^            assert not p\.grad\.requires_grad\n"
        r"(?=(?:.*\n){4}                if self\._groups is not None:)",
        "            if p.grad.is_neg():\n                p.grad = p.grad.resolve_neg()\n",
        "before",
    ),
    # On ranks without optimizer state, Horovod makes a step to create it, and weights decay by
    # that.
    Edit(
        _FUNCTIONS,
        r"^    state_dict = optimizer\.state_dict\(\)\n",
        "    return ringcoll_torch.broadcast_optimizer_state(optimizer, root_rank)\n",
        "before",
    ),
    Edit(
        _FUNCTIONS,
        r"^from horovod\.torch\.mpi_ops import allgather, broadcast_, ",
        _IMPORT,
        "before",
    ),
]

# Patterns of the lines that follow the one that makes the output.
_CALLS = (
    *(rf"return _{name}_async\(" for name in ("allreduce", "allgather", "broadcast")),
    r"return _reducescatter_async\(",
    r"if isinstance\(splits, torch\.Tensor\):",  # of an alltoall
)
_GROUPED_CALLS = ("grouped_allreduce", "grouped_allgather", "grouped_reducescatter")

TENSOR_EDITS = [
    Edit(_MPI_OPS, r"^from horovod\.common\.basics import HorovodBasics", _IMPORT, "before"),
    # Out of place, a tensor with the negative bit is replaced by a copy that has the values in
    # memory.
    *(
        Edit(
            _MPI_OPS,
            rf"^    output = tensor\.new\(.*\)\n(?=    {call})",
            "    tensor = ringcoll_torch.plain(tensor)\n",
            "before",
        )
        for call in _CALLS
    ),
    *(
        Edit(
            _MPI_OPS,
            rf"^    outputs = \[t\.new\(.*\n(?=    return _{operation}_async\()",
            "    tensors = [ringcoll_torch.plain(t) for t in tensors]\n",
            "before",
        )
        for operation in _GROUPED_CALLS
    ),
    # In place, a tensor with the negative bit is refused.
    Edit(
        _MPI_OPS,
        r"^def _check_function\(function_factory, tensor\):\n",
        "    ringcoll_torch.check_plain(tensor)\n",
    ),
    # Horovod checks only the first tensor of a group.
    *(
        Edit(
            _MPI_OPS,
            rf"^    function = _check_function\(_{operation}_function_factory, tensors\[0\]\)\n",
            "    for tensor in tensors:\n"
            f"        _check_function(_{operation}_function_factory, tensor)\n",
            "before",
        )
        for operation in _GROUPED_CALLS
    ),
]

TORCH_PYTHON_EDITS = [*OPTIMIZER_EDITS, *TENSOR_EDITS]
