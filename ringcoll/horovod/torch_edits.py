"""horovod.torch 0.28.1: optimizers that keep what torch's have, and tensors negated by a bit."""

from __future__ import annotations

from .anchored import Edit

_OPTIMIZER = "horovod/torch/optimizer.py"
_FUNCTIONS = "horovod/torch/functions.py"
_MPI_OPS = "horovod/torch/mpi_ops.py"
_IMPORT = "from horovod.common import ringcoll_torch\n"

# Where a method of one name stands in both classes, what follows tells them apart.
_LAST_OF_DISTRIBUTED = r"(?=\):\n(?:.+\n)+\n\nclass _DistributedAdasumOptimizer)"
_LAST_OF_ADASUM = r"(?=\):\n(?:.+\n)+\n\ndef DistributedOptimizer)"

OPTIMIZER_EDITS = [
    Edit(_OPTIMIZER, r"^from horovod\.torch\.compression import Compression\n", _IMPORT, "before"),
    # A closure computes gradients within the step: they are awaited after it, and not before.
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
    # torch's zero_grad() has an argument.
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
    # The optimizer that is wrapped is made anew of its parameters alone.
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
    # A gradient can be negated by a bit, as that of a scalar that is an imaginary part.
    Edit(
        _OPTIMIZER,
        r"^            assert not p\.grad\.requires_grad\n"
        r"(?=(?:.*\n){4}                if self\._groups is not None:)",
        "            if p.grad.is_neg():\n                p.grad = p.grad.resolve_neg()\n",
        "before",
    ),
    # State was made by a step: of ranks without any, whose weights decayed by it.
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

# What follows the line that makes the output.
_CALLS = (
    *(rf"return _{name}_async\(" for name in ("allreduce", "allgather", "broadcast")),
    r"return _reducescatter_async\(",
    r"if isinstance\(splits, torch\.Tensor\):",  # of an alltoall
)
_GROUPED_CALLS = ("grouped_allreduce", "grouped_allgather", "grouped_reducescatter")

TENSOR_EDITS = [
    Edit(_MPI_OPS, r"^from horovod\.common\.basics import HorovodBasics", _IMPORT, "before"),
    # Not in place, what is sent is a copy with the values in its memory.
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
    # In place it is refused.
    Edit(
        _MPI_OPS,
        r"^def _check_function\(function_factory, tensor\):\n",
        "    ringcoll_torch.check_plain(tensor)\n",
    ),
    # Of a group the first tensor was checked alone.
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
