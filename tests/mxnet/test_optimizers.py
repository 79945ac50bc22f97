"""Which optimizers of MXNet are rules of ringcoll, and how the others run."""

from __future__ import annotations

import pickle

import mxnet as mx
import numpy
import pytest

from ringcoll import rules
from ringcoll.mxnet import optimizers

SCHEDULE = mx.lr_scheduler.FactorScheduler(step=1, factor=0.5)


@pytest.fixture(autouse=True)
def _python_rules(monkeypatch):
    monkeypatch.setattr(optimizers, "python_rule", lambda update: update)


def rule(optimizer, index=0, dtype="float32", sparse=False):
    return optimizers.rule_of(optimizer, index, dtype, sparse)


def test_plain_formulas_are_rules():
    sgd = mx.optimizer.SGD(0.5, learning_rate=0.25, wd=0.125, rescale_grad=0.5)
    assert rule(sgd) == rules.SGD(0.125, 0.5, 0.0, 0.25)
    assert rule(sgd, sparse=True) == rule(sgd)
    assert rule(mx.optimizer.NAG(0.5, learning_rate=0.25)) == rules.SGD(0.25, 0.5, nesterov=True)
    assert rule(mx.optimizer.NAG(learning_rate=0.25)) == rules.SGD(0.25)
    assert rule(mx.optimizer.Adam(epsilon=0, rescale_grad=0.5)) == rules.Adam(eps=0.0)
    assert rule(mx.optimizer.AdaGrad(eps=0, learning_rate=0.5)) == rules.Adagrad(0.5, eps=0.0)


@pytest.mark.parametrize(
    "optimizer",
    [
        mx.optimizer.SGD(clip_gradient=1.0),
        mx.optimizer.SGD(lr_scheduler=SCHEDULE),
        mx.optimizer.SGD(rescale_grad=0.0),
        mx.optimizer.NAG(0.9, wd=0.1),
        mx.optimizer.Adam(),
        mx.optimizer.AdaGrad(),
        mx.optimizer.AdaGrad(eps=0, wd=0.1),
        mx.optimizer.LAMB(),
        mx.optimizer.Test(),
    ],
)
def test_other_formulas_run_in_python(optimizer):
    assert isinstance(rule(optimizer), optimizers.OptimizerRule)


def test_half_precision_runs_in_python():
    """The optimizer itself knows whether it keeps values of single precision beside."""
    assert isinstance(rule(mx.optimizer.SGD(), dtype="float16"), optimizers.OptimizerRule)


def test_factors_of_a_key():
    optimizer = mx.optimizer.SGD(learning_rate=0.5, wd=0.25, param_idx2name={3: "a_weight"})
    optimizer.set_lr_mult({"a_weight": 0.5})
    optimizer.set_wd_mult({"a_weight": 2.0})
    assert rule(optimizer, 3) == rules.SGD(0.25, weight_decay=0.5)
    assert rule(optimizer, 4) == rules.SGD(0.5, weight_decay=0.25)


def test_rows_have_states_of_their_own():
    update = rule(mx.optimizer.Adam(learning_rate=0.1))
    first, second = numpy.ones(3, "float32"), numpy.ones(3, "float32")
    push = numpy.array([1, -2, 3], "float32")
    for _ in range(3):
        update(7, first, push)
    update(8, second, push)
    again = numpy.ones(3, "float32")
    rule(mx.optimizer.Adam(learning_rate=0.1))(0, again, push)
    numpy.testing.assert_array_equal(second, again)
    assert (numpy.sign(1 - first) == numpy.sign(push)).all()


def test_states_and_counts_travel_with_a_rule():
    """A copy goes on as if nothing had happened: a backup, or a server that takes over."""
    update, value = rule(mx.optimizer.Adam(lr_scheduler=SCHEDULE)), numpy.ones(3, "float32")
    push = numpy.array([1, -2, 3], "float32")
    for _ in range(3):
        update(7, value, push)
    copied, other = pickle.loads(pickle.dumps(update)), value.copy()
    for _ in range(3):
        update(7, value, push)
        copied(7, other, push)
    numpy.testing.assert_array_equal(value, other)
