"""Optimizers and lazy tensors of torch under horovod.torch, whatever its backend.

Horovod 0.28.1 reads the memory of tensors, and makes the state of an optimizer by a step. Here is
what it calls instead. It imports nothing of ringcoll, and horovod.torch only when it is called.
"""

import torch


def plain(tensor):
    """The tensor with its values in its memory: torch negates some by a bit beside it."""
    return tensor.resolve_conj().resolve_neg()


def check_plain(tensor):
    """Raises ValueError for a tensor that plain() would copy: one that is worked on in place."""
    if tensor.is_neg() or tensor.is_conj():
        raise ValueError(
            "Horovod cannot work in place on a tensor whose memory holds the negated or conjugated "
            "values (torch sets a bit for it, as in x.conj().imag): work on a copy, "
            "tensor.resolve_conj().resolve_neg(), and copy the result back by tensor.copy_()"
        )


def keeping_state(optimizer, distributed):
    """The distributed optimizer, with the state, defaults and hooks of the one that it wraps."""
    for name, value in vars(optimizer).items():
        if name in ("state", "defaults") or name.startswith("_optimizer_"):
            setattr(distributed, name, value)
    return distributed


def hooked_inside(step):
    """For the step() of a distributed optimizer: torch calls its hooks once, in the step() that it
    wraps, where gradients are reduced."""
    step.hooked = True
    return step


def reducing(optimizer, closure):
    """The closure of a step, followed by what step() does without one: waiting for the gradients.

    L-BFGS chooses its next evaluation by the loss, so the loss is made the average of all ranks.
    """
    if closure is None:
        return None
    averages = isinstance(optimizer, torch.optim.LBFGS)

    def evaluate():
        loss = closure()
        if optimizer._should_synchronize:
            with torch.no_grad():
                optimizer.synchronize()
        optimizer._synchronized = False
        return _averaged(loss, optimizer.process_set) if averages else loss

    return evaluate


def _averaged(loss, process_set):
    import horovod.torch as hvd

    if not process_set.included():
        return loss
    mine = torch.as_tensor(loss).detach()
    return hvd.allreduce(mine, name="optimizer.loss", process_set=process_set)


def _shapes_of(optimizer):
    return [[param.shape for param in group["params"]] for group in optimizer.param_groups]


class _StateOfRoot:
    """What an optimizer is at the root, but for the contents of its tensors."""

    def __init__(self, optimizer):
        self.options = [
            {key: value for key, value in group.items() if key != "params"}
            for group in optimizer.param_groups
        ]
        self.shapes = _shapes_of(optimizer)
        self.states = [
            [self._described(p, optimizer.state.get(p, {})) for p in group["params"]]
            for group in optimizer.param_groups
        ]

    @staticmethod
    def _described(param, state):
        return {
            name: _Like(param, value) if _is_dense(value) else value
            for name, value in state.items()
        }

    def unlike(self, optimizer):
        """Why this rank's optimizer cannot get it; empty if it can."""
        mine = _shapes_of(optimizer)
        if [len(group) for group in mine] != [len(group) for group in self.shapes]:
            return (
                f"its groups have {[len(group) for group in mine]} parameters, and those of the "
                f"root {[len(group) for group in self.shapes]}"
            )
        for index, (shapes, of_root) in enumerate(zip(mine, self.shapes, strict=True)):
            for place, (shape, expected) in enumerate(zip(shapes, of_root, strict=True)):
                if shape != expected:
                    return (
                        f"parameter {place} of its group {index} has the shape {list(shape)}, and "
                        f"that of the root {list(expected)}"
                    )
        return ""

    def give_to(self, optimizer):
        """Makes the optimizer like that of the root; its tensors have contents of any kind yet."""
        for group, options in zip(optimizer.param_groups, self.options, strict=True):
            for key, value in options.items():
                if torch.is_tensor(value) and torch.is_tensor(group.get(key)):
                    group[key].copy_(value)  # whoever holds the tensor sees it
                else:
                    group[key] = value
        for group, states in zip(optimizer.param_groups, self.states, strict=True):
            for param, described in zip(group["params"], states, strict=True):
                if not described:
                    optimizer.state.pop(param, None)
                    continue
                mine = optimizer.state.get(param, {})
                optimizer.state[param] = {
                    name: value.made(param, mine.get(name)) if isinstance(value, _Like) else value
                    for name, value in described.items()
                }


def _is_dense(value):
    return torch.is_tensor(value) and value.layout == torch.strided


class _Like:
    """A tensor of a state, without its contents."""

    def __init__(self, param, tensor):
        self.shape = tensor.shape
        self.dtype = tensor.dtype
        self.beside_param = tensor.device == param.device

    def made(self, param, present):
        """A tensor of this kind for the parameter: the one that is there, if it is."""
        device = param.device if self.beside_param else torch.device("cpu")
        kind = (self.shape, self.dtype, device)
        if _is_dense(present) and (present.shape, present.dtype, present.device) == kind:
            return present
        if self.shape == param.shape:  # in the order of the parameter's memory
            return torch.zeros_like(param, dtype=self.dtype, device=device, requires_grad=False)
        return torch.zeros(self.shape, dtype=self.dtype, device=device)


def _tensors_of(optimizer):
    """The tensors of the states, in an order that all ranks share, with names."""
    for index, group in enumerate(optimizer.param_groups):
        for place, param in enumerate(group["params"]):
            for name, value in optimizer.state.get(param, {}).items():
                if _is_dense(value):
                    yield f"optimizer.{index}.{place}.{name}", value


def broadcast_optimizer_state(optimizer, root_rank):
    """Gives all ranks the options and the state of the root's optimizer, and touches nothing else.

    What the root has not (the momentum of an optimizer that has made no step, say) no rank has
    afterwards. Raises ValueError on all ranks if their parameters differ from those of the root.
    """
    import horovod.torch as hvd

    is_root = hvd.rank() == root_rank
    of_root = hvd.broadcast_object(
        _StateOfRoot(optimizer) if is_root else None, root_rank, name="optimizer.state"
    )
    why = of_root.unlike(optimizer)
    reasons = hvd.allgather_object(why, name="optimizer.unlike")
    for rank, reason in enumerate(reasons):
        if reason:
            raise ValueError(f"The state of the optimizer cannot be sent to rank {rank}: {reason}")
    with torch.no_grad():
        if not is_root:
            of_root.give_to(optimizer)
        sent = [(name, tensor, tensor.contiguous()) for name, tensor in _tensors_of(optimizer)]
        hvd.broadcast_parameters([(name, buffer) for name, _, buffer in sent], root_rank)
        for _, tensor, buffer in sent:
            if tensor is not buffer:
                tensor.copy_(buffer)
