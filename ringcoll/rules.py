"""Rules of parameter tables: how a push changes a row of values.

>>> Sum()
Sum()
>>> rule = Adam(lr=0.01)
>>> dataclasses.replace(rule, lr=0.001)  # the same rule with another learning rate
Adam(lr=0.001, betas=(0.9, 0.999), eps=1e-08, weight_decay=0.0)

In the formulas ``v`` is the value, ``p`` the push, and ``t`` counts the pushes of the row, from 1
on. An optimizer takes gradients as pushes, and computes what the one of the same name in
``torch.optim`` computes. Arithmetic is that of float64 for float64 values, and that of float32 for
others. Values of float16 and bfloat16 are rounded once, at the end. Results do not depend on the
processor, so copies of a row stay equal.

:class:`Sum`, :class:`Assign` and :class:`Python` take values of every type, and the others
floating-point values. A push has the type of the values; those of float16 and bfloat16 also take
float32.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import pickle
from dataclasses import dataclass
from typing import Any, ClassVar

from ringcoll import _core
from ringcoll.errors import InvalidArgument

__all__ = ["SGD", "Adagrad", "Adam", "AdamW", "Assign", "Python", "Rule", "Sum", "WeightedAverage"]


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity: as texts they are refused by name."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


@dataclass(frozen=True)
class Rule:
    """What all rules have. Parameters that are not allowed raise
    :exc:`~ringcoll.errors.InvalidArgument`, which names them."""

    _name: ClassVar[str] = ""

    def __post_init__(self) -> None:
        _core.rule_check(self.spec())

    def spec(self) -> str:
        """The rule as JSON, with all parameters, as the library takes it."""
        parameters = {
            field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)
        }
        return json.dumps({"rule": self._name, **parameters}, default=float)


@dataclass(frozen=True)
class Sum(Rule):
    """Adds the push: ``v = v + p``. Integers wrap; for bool it is "or"."""

    _name = "sum"


@dataclass(frozen=True)
class Assign(Rule):
    """Takes the push as it is: ``v = p``.

    :param combine: what ``p`` is if several pushes count as one, as those of a clock do and the
        same rows of one push: "last", the last one, or "sum".
    """

    _name = "assign"
    combine: str = "last"


@dataclass(frozen=True)
class SGD(Rule):
    """Stochastic gradient descent, as :class:`torch.optim.SGD`.

    ::

        g = p + weight_decay * v                          # -p if maximize
        b = g                                             # for t = 1
        b = momentum * b + (1 - dampening) * g            # for t > 1
        v = v - lr * b                                    # lr * (g + momentum * b) if nesterov

    ``b`` is the momentum buffer, an array of state. Without momentum there is none, and ``b = g``.

    :param lr: the learning rate, at least 0.
    :param momentum: at least 0.
    :param dampening: any number.
    :param weight_decay: at least 0.
    :param nesterov: wants a momentum above 0, and a dampening of 0.
    :param maximize: climbs instead of descending.

    Sutskever et al., *On the importance of initialization and momentum in deep learning*, 2013.
    """

    _name = "sgd"
    lr: float = 1e-3
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    maximize: bool = False


@dataclass(frozen=True)
class Adagrad(Rule):
    """Adagrad, as :class:`torch.optim.Adagrad`.

    ::

        g = p + weight_decay * v
        s = s + g * g
        v = v - lr / (1 + (t - 1) * lr_decay) * g / (sqrt(s) + eps)

    ``s`` is an array of state, which begins with ``initial_accumulator_value``.

    :param lr: the learning rate, at least 0.
    :param lr_decay: at least 0.
    :param weight_decay: at least 0.
    :param initial_accumulator_value: at least 0.
    :param eps: at least 0.

    Duchi, Hazan and Singer, *Adaptive subgradient methods for online learning and stochastic
    optimization*, 2011.
    """

    _name = "adagrad"
    lr: float = 1e-2
    lr_decay: float = 0.0
    weight_decay: float = 0.0
    initial_accumulator_value: float = 0.0
    eps: float = 1e-10


@dataclass(frozen=True)
class Adam(Rule):
    """Adam, as :class:`torch.optim.Adam` without ``amsgrad``.

    ::

        g = p + weight_decay * v
        m = betas[0] * m + (1 - betas[0]) * g
        s = betas[1] * s + (1 - betas[1]) * g * g
        v = v - lr / (1 - betas[0]^t) * m / (sqrt(s) / sqrt(1 - betas[1]^t) + eps)

    ``m`` and ``s`` are arrays of state.

    :param lr: the learning rate, at least 0.
    :param betas: two numbers, at least 0 and below 1.
    :param eps: at least 0.
    :param weight_decay: at least 0.

    Kingma and Ba, *Adam: a method for stochastic optimization*, 2015.
    """

    _name = "adam"
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0


@dataclass(frozen=True)
class AdamW(Rule):
    """Adam with a weight decay of its own, as :class:`torch.optim.AdamW` without ``amsgrad``.

    ::

        v = v * (1 - lr * weight_decay)

    before each step of :class:`Adam`, whose gradient has no weight decay then. Parameters and state
    are those of Adam.

    Loshchilov and Hutter, *Decoupled weight decay regularization*, 2019.
    """

    _name = "adamw"
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 1e-2


@dataclass(frozen=True)
class WeightedAverage(Rule):
    """The mean of all pushes, each of which comes with a weight ``w`` above 0.

    ::

        v = v + (p - v) * w / (W + w)
        W = W + w

    ``W`` is one number of a row, and begins with 0. The first push is taken as it is.
    """

    _name = "weighted_average"


@dataclass(frozen=True)
class Python(Rule):
    """A rule in Python, which runs in the servers: ``update(key, value, push)`` changes ``value``.

    ``value`` and ``push`` are NumPy arrays with the shape of a row, and ``key`` is the row's id. A
    dense table that is made with such a rule, or with ``shards=1``, is one row with the key 0: the
    whole tensor. Others are cut along their first axis, and each piece is a row. bfloat16 comes as
    float32.

    ``update`` is an object that can be called, or its pickle. Servers unpickle it, so the module
    that has it must be importable there. It may keep state: each shard has its own copy, which is
    pickled again, with its state, for each further holder. Copies must do the same if they are
    called the same way, since they must stay equal. ``update`` must not call tables, whose server
    it holds up meanwhile, nor import modules that wait for tables.

    If ``update`` raises, no row of the push changes, and the push raises
    :class:`~ringcoll.errors.InvalidArgument` with the exception's text. With ``staleness=0``, where
    rows are updated at the end of a clock, only that row stays as it was: the first such exception
    of a shard is logged, and ``table.info()["failed"]`` counts them.

    It is slow: each row takes the interpreter's lock, and is copied to an array and back. There are
    no weights.
    """

    _name = "custom"
    update: Any

    def __post_init__(self) -> None:
        if not isinstance(self.update, bytes):
            if not callable(self.update):
                raise InvalidArgument(f"rules.Python({self.update!r}): it is no function")
            try:
                pickled = pickle.dumps(self.update)
            except Exception as error:
                raise InvalidArgument(
                    f"rules.Python({self.update!r}): it cannot be pickled: {error}; functions and "
                    "classes are those of a module"
                ) from error
            object.__setattr__(self, "update", pickled)
        super().__post_init__()

    def spec(self) -> str:
        """The rule as JSON, for rows of one dimension. :meth:`spec_for` says their shape."""
        return self.spec_for([-1])

    def spec_for(self, shape: list[int]) -> str:
        """The rule as JSON, for rows of this shape."""
        data = {"shape": shape, "pickle": base64.b64encode(self.update).decode()}
        return json.dumps({"rule": self._name, "maker": "python", "data": json.dumps(data)})
