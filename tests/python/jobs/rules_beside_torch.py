"""Applies each rule and torch's optimizer of the same name to the same gradients, and prints by how
much they differ, as JSON: for each case the greatest distance in units of the last place.

With the argument "exact", square roots are rounded correctly. Torch's own may be those of a library
that takes less care.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import torch

from ringcoll import _core, rules

STEPS = 50
COUNT = 4097
CASES: dict[str, list[dict[str, Any]]] = {
    "SGD": [
        {"lr": 0.1},
        {"lr": 0.1, "weight_decay": 0.01},
        {"lr": 0.1, "momentum": 0.9},
        {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1},
        {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
        {"lr": 0.1, "momentum": 0.5, "maximize": True, "weight_decay": 0.1},
        {"lr": 0.1, "momentum": 0.5, "maximize": True, "nesterov": True},
    ],
    "Adagrad": [
        {"lr": 0.1},
        {"lr": 0.1, "lr_decay": 0.1},
        {"lr": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.5, "eps": 1e-3},
    ],
    "Adam": [
        {"lr": 0.1},
        {"lr": 0.1, "weight_decay": 0.1, "eps": 1e-3},
        {"lr": 0.1, "betas": (0.3, 0.5)},
        {"lr": 0.1, "betas": (0.0, 0.0)},
    ],
    "AdamW": [
        {"lr": 0.1},
        {"lr": 0.1, "weight_decay": 0.0, "eps": 1e-3},
        {"lr": 0.1, "betas": (0.6, 0.9), "weight_decay": 0.5},
    ],
}
STATE = {"SGD": ["momentum_buffer"], "Adagrad": ["sum"]}
STATE_OF_ADAM = ["exp_avg", "exp_avg_sq"]


def exact_root(tensor: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.sqrt(tensor.detach().numpy()))


def ulps(found: np.ndarray, expected: np.ndarray) -> float:
    """The greatest distance, in units of the last place of a number, or of 1 if it is smaller:
    gradients are about 1, and where they cancel, the result has their error."""
    largest = np.maximum(np.abs(expected), np.ones(1, expected.dtype))
    return float(np.max(np.abs(found - expected) / np.spacing(largest)))


def states_of(name: str, optimizer: torch.optim.Optimizer, value: torch.Tensor) -> list[np.ndarray]:
    """Copies of the arrays of state; zeros before the first step."""
    state = optimizer.state[value]
    wanted = STATE.get(name, STATE_OF_ADAM)
    found = [state.get(slot) for slot in wanted]
    return [np.zeros(COUNT) if one is None else one.numpy().copy() for one in found]


def distance(name: str, options: dict[str, Any], dtype: str) -> float:
    """The greatest distance of value and state after each of the steps, which both begin with the
    same value and state. The learning rate changes half-way."""
    random = np.random.default_rng(7)
    value = torch.nn.Parameter(torch.from_numpy(random.standard_normal(COUNT).astype(dtype)))
    optimizer = getattr(torch.optim, name)([value], foreach=False, **options)
    rule = getattr(rules, name)(**options)
    slots = json.loads(_core.rule_check(rule.spec()))["state_slots"]
    greatest = 0.0
    for step in range(STEPS):
        if step == STEPS // 2:
            options = options | {"lr": 0.03}
            rule = getattr(rules, name)(**options)
            optimizer.param_groups[0]["lr"] = 0.03
        gradient = random.standard_normal(COUNT).astype(dtype)
        before = value.detach().numpy().copy()
        states = states_of(name, optimizer, value)
        own, own_states = before.copy(), [one.astype(dtype) for one in states[:slots]]
        pushes, _ = _core.rule_apply(rule.spec(), own, own_states, gradient, pushes=step)
        assert pushes == step + 1
        value.grad = torch.from_numpy(gradient)
        optimizer.step()
        greatest = max(greatest, ulps(own, value.detach().numpy()))
        after = states_of(name, optimizer, value)[:slots]
        greatest = max([greatest, *map(ulps, own_states, after)])
    return greatest


def main() -> None:
    torch.set_num_threads(1)
    if "exact" in sys.argv[1:]:
        torch.Tensor.sqrt = exact_root  # type: ignore[method-assign,assignment]
    found = {
        f"{dtype} {name} {options}": distance(name, options, dtype)
        for dtype in ("float32", "float64")
        for name, all_options in CASES.items()
        for options in all_options
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
