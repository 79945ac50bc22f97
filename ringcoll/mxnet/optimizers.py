"""Optimizers of MXNet as rules of tables.

Where a rule of ringcoll computes the same formula, it is taken. For others a copy of the optimizer
itself runs in the servers. It is slow: each row becomes an array of MXNet and back. Of a dense key
it gets the whole array, unless that is so large that it is cut.

What differs in the formulas: SGD and NAG of MXNet keep the learning rate in the momentum, which is
the same as long as the rate does not change. Adam and AdaGrad of MXNet add epsilon elsewhere. With
a momentum, NAG of MXNet takes the decay from the value after the update.
"""

from __future__ import annotations

import pickle
from typing import Any

import mxnet
import numpy

from ringcoll import rules
from ringcoll.mxnet.errors import InvalidArgument

Array = numpy.ndarray[Any, numpy.dtype[Any]]


def rule_of(optimizer: Any, index: int, dtype: str, sparse: bool) -> rules.Rule:
    """The rule of the key with this index."""
    # MXNet's servers have the optimizer from a pickle, which leaves out parameters of gluon and the
    # factors of rates that are in these. So does this.
    sent = pickle.dumps(optimizer)
    optimizer = pickle.loads(sent)
    if sparse and not getattr(optimizer, "lazy_update", True):
        raise InvalidArgument(
            f"{type(optimizer).__name__} with lazy_update=False changes rows that were not pushed, "
            "and a row_sparse key keeps only rows: use lazy_update=True or a dense key"
        )
    rule = _plain(optimizer, index) if dtype in ("float32", "float64") else None
    return python_rule(OptimizerRule(sent, index)) if rule is None else rule


def merging() -> rules.Rule:
    """The rule without an optimizer: the value becomes the sum of the pushes of a clock."""
    return rules.Assign(combine="sum")


def python_rule(update: Any) -> rules.Rule:
    """A rule that calls ``update(key, value, push)`` for each row, in the servers."""
    return rules.Python(update)


def _plain(optimizer: Any, index: int) -> rules.Rule | None:
    """The rule of ringcoll with the optimizer's formula; None if there is none."""
    scale = float(optimizer.rescale_grad)
    if optimizer.lr_scheduler is not None or optimizer.clip_gradient or scale <= 0:
        return None
    rate, decay = float(optimizer._get_lr(index)), float(optimizer._get_wd(index))
    if rate < 0 or decay < 0:
        return None
    kind = type(optimizer)
    if kind in (mxnet.optimizer.SGD, mxnet.optimizer.NAG):
        momentum = max(0.0, float(optimizer.momentum))
        nesterov = kind is mxnet.optimizer.NAG and momentum > 0
        if nesterov and decay > 0:
            return None  # MXNet adds the decay of the new value to the momentum
        # rate * (scale * g + decay * v), without a pass over the gradient.
        return rules.SGD(rate * scale, momentum, 0.0, decay / scale, nesterov)
    if kind is mxnet.optimizer.Adam and optimizer.epsilon == 0:
        # A factor of the gradient is one of both the numerator and the denominator.
        return rules.Adam(rate, (optimizer.beta1, optimizer.beta2), 0.0, decay / scale)
    if kind is mxnet.optimizer.AdaGrad and optimizer.float_stable_eps == 0 and decay == 0:
        return rules.Adagrad(rate, eps=0.0)
    return None


class OptimizerRule:
    """An optimizer as a rule in Python. Each row has a state and a count of updates of its own."""

    def __init__(self, optimizer: bytes, index: int) -> None:
        self._sent, self._index = optimizer, index
        self._updaters: dict[int, Any] = {}

    def __call__(self, key: int, value: Array, push: Array) -> None:
        """Changes the value in place."""
        weight = mxnet.nd.array(value, dtype=value.dtype)
        gradient = mxnet.nd.array(push, dtype=value.dtype)
        self._updater(key)(self._index, gradient, weight)
        value[...] = weight.asnumpy()

    def _updater(self, key: int) -> Any:
        if key not in self._updaters:
            self._updaters[key] = mxnet.optimizer.get_updater(pickle.loads(self._sent))
        return self._updaters[key]

    def __getstate__(self) -> dict[str, Any]:
        states = {key: each.get_states(True) for key, each in self._updaters.items()}
        return {"sent": self._sent, "index": self._index, "states": states}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._sent, self._index, self._updaters = state["sent"], state["index"], {}
        for key, states in state["states"].items():
            self._updater(key).set_states(states)
