"""Rules of parameter tables: beside torch's optimizers, and what a rule may be."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ringcoll
from ringcoll import _core, rules

torch = pytest.importorskip("torch")

JOB = Path(__file__).parent / "jobs" / "rules_beside_torch.py"
A_FEW = 4
ALL = [getattr(rules, name) for name in rules.__all__ if name not in ("Rule", "Python")]
OPTIMIZERS = [rules.SGD, rules.Adagrad, rules.Adam, rules.AdamW]


def distances(*arguments: str, **env: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-P", str(JOB), *arguments],
        env=os.environ | env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, float] = json.loads(done.stdout)
    assert len(found) > 30
    return found


def test_rules_are_a_few_units_of_the_last_place_from_torch():
    """Torch rounds less often where it fuses operations, and its roots may be a unit off."""
    assert {case: one for case, one in distances().items() if not one <= A_FEW} == {}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="torch fuses operations elsewhere")
def test_rules_are_those_of_torch_bit_for_bit():
    """Where torch fuses no operations, and roots are rounded correctly."""
    found = distances("exact", ATEN_CPU_CAPABILITY="default")
    # Powers of Adam's betas may differ in the last places of a float64.
    allowed = {case: A_FEW if case.startswith("float64 Adam") else 0 for case in found}
    assert {case: one for case, one in found.items() if not one <= allowed[case]} == {}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bits_are_float32_that_is_rounded_once(dtype):
    spec = rules.Adam(lr=0.1).spec()
    random = torch.Generator().manual_seed(5)
    value = torch.randn(1000, generator=random).to(dtype)
    state = [torch.zeros(1000), torch.zeros(1000)]
    wide_state = [torch.zeros(1000), torch.zeros(1000)]
    for step in range(5):
        push = torch.randn(1000, generator=random)
        wide = value.float()
        _core.rule_apply(spec, value, state, push, pushes=step)
        _core.rule_apply(spec, wide, wide_state, push, pushes=step)
        assert torch.equal(value, wide.to(dtype))
        assert all(map(torch.equal, state, wide_state))


def test_a_weighted_average_is_the_mean_of_all_pushes():
    spec = rules.WeightedAverage().spec()
    random = np.random.default_rng(3)
    pushes, weights = random.standard_normal((20, 33)), random.uniform(0.1, 9, 20)
    value, count, total = np.zeros(33), 0, 0.0
    for push, weight in zip(pushes, weights, strict=True):
        count, total = _core.rule_apply(spec, value, [], push, count, total, weight)
    assert (count, total) == (20, pytest.approx(weights.sum()))
    np.testing.assert_allclose(value, np.average(pushes, axis=0, weights=weights), rtol=1e-12)


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "int64", "float16", "float32"])
def test_sum_and_assign_take_other_types(dtype):
    value, push = np.arange(100).astype(dtype), np.arange(100, 0, -1).astype(dtype)
    with np.errstate(over="ignore"):
        expected = value + push
    _core.rule_apply(rules.Sum().spec(), value, [], push)
    np.testing.assert_array_equal(value, expected)
    _core.rule_apply(rules.Assign().spec(), value, [], push)
    np.testing.assert_array_equal(value, push)


@pytest.mark.parametrize("rule", ALL)
def test_defaults_are_those_of_the_library(rule):
    described = json.loads(
        _core.rule_check(json.dumps({"rule": json.loads(rule().spec())["rule"]}))
    )
    assert described["rule"] == json.loads(rule().spec())


@pytest.mark.parametrize("rule", OPTIMIZERS)
def test_defaults_are_those_of_torch(rule):
    signature = inspect.signature(getattr(torch.optim, rule.__name__)).parameters
    for field in dataclasses.fields(rule):
        assert field.default == signature[field.name].default, field.name


def test_a_rule_says_what_it_is_as_json():
    assert json.loads(rules.Sum().spec()) == {"rule": "sum"}
    assert json.loads(rules.Assign("sum").spec()) == {"rule": "assign", "combine": "sum"}
    assert json.loads(rules.Adam(lr=np.float32(0.5), betas=(0, 0.5)).spec()) == {
        "rule": "adam",
        "lr": 0.5,
        "betas": [0, 0.5],
        "eps": 1e-8,
        "weight_decay": 0.0,
    }
    assert dataclasses.replace(rules.SGD(momentum=0.5), lr=2) == rules.SGD(lr=2, momentum=0.5)


@pytest.mark.parametrize(
    ("rule", "parameters", "why"),
    [
        (rules.SGD, {"lr": -0.1}, "rule sgd: lr is -0.1: it must be a finite number of at least 0"),
        (rules.SGD, {"lr": float("nan")}, 'rule sgd: lr is "nan": it must be a finite number'),
        (rules.SGD, {"momentum": float("inf")}, 'rule sgd: momentum is "inf": it must be'),
        (rules.SGD, {"nesterov": True}, "nesterov wants a momentum above 0"),
        (rules.SGD, {"nesterov": True, "momentum": 0.5, "dampening": 0.1}, "a dampening of 0"),
        (rules.SGD, {"maximize": 1}, "rule sgd: maximize is 1: it must be true or false"),
        (rules.Adagrad, {"eps": None}, "rule adagrad: eps is null: it must be"),
        (rules.Adam, {"betas": (0.9, 1.0)}, r"adam: betas\[1\] is 1.* at least 0 and below 1"),
        (rules.Adam, {"betas": (0.9,)}, r"adam: betas is \[0.9\]: it must be an array of two"),
        (rules.AdamW, {"betas": (float("nan"), 0.9)}, r'adamw: betas\[0\] is "nan"'),
        (rules.AdamW, {"weight_decay": -1}, "rule adamw: weight_decay is -1: it must be"),
    ],
)
def test_a_bad_parameter_is_named(rule: type[rules.Rule], parameters: dict[str, Any], why: str):
    with pytest.raises(ringcoll.InvalidArgument, match=why):
        rule(**parameters)


def test_what_does_not_fit_a_row_is_refused():
    spec, value = rules.Adam().spec(), np.zeros(8, np.float32)
    state, push = [np.zeros(8, np.float32), np.zeros(8, np.float32)], np.ones(8, np.float32)
    for why, arguments in {
        "the push has 7 elements, and the value has 8": (value, state, push[:7]),
        "an array of state has 4 elements": (value, [state[0], state[1][:4]], push),
        "an array of state is float64: it must be float32": (value, [state[0], np.ones(8)], push),
        "state has 1 arrays: the rule adam has 2": (value, state[:1], push),
        "values are float32, and a push is float64": (value, state, push.astype(float)),
    }.items():
        with pytest.raises(ringcoll.InvalidArgument, match=why):
            _core.rule_apply(spec, *arguments)
    with pytest.raises(ringcoll.InvalidArgument, match="this rule takes no weights"):
        _core.rule_apply(spec, value, state, push, weight=2.0)
    assert not value.any()
