"""The model of the store agrees with real stores, on simulated and on real agents.

RINGCOLL_TEST_OPERATIONS is the number of operations in all runs together. A run's seed is in the
name of its test, which so repeats it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import pytest
from model_driver import run_real, run_simulated

# Taken out of the environment, since the core warns of variables RINGCOLL_* that it has not.
OPERATIONS = int(os.environ.pop("RINGCOLL_TEST_OPERATIONS", "100000"))
EACH = 1000  # in one run, with a store of its own
RUNS = max(2, OPERATIONS // EACH)
REAL = max(1, RUNS // 5)

WHAT_COUNTS = {"put", "delete", "commits of ranks", "commits of guests", "failed commits"}
WHAT_COUNTS |= {"get", "get_all", "list_versions", "update", "deltas", "lease", "release"}
WHAT_COUNTS |= {"join", "leave", "killed ranks", "killed guests"}


@pytest.fixture(scope="module")
def totals() -> Iterator[Counter[str]]:
    """What all runs have done. Many runs together leave nothing out."""
    done: Counter[str] = Counter()
    yield done
    print(done)
    if done["runs"] >= 100:
        assert set(done) >= WHAT_COUNTS, f"never done: {WHAT_COUNTS - set(done)}"


@pytest.mark.parametrize("seed", range(RUNS - REAL))
def test_model_agrees_on_simulated_agents(seed: int, totals: Counter[str]) -> None:
    totals += run_simulated(seed, EACH)
    totals["runs"] += 1


@pytest.mark.parametrize("seed", range(REAL))
def test_model_agrees_on_real_agents(seed: int, totals: Counter[str]) -> None:
    totals += run_real(seed, EACH)
    totals["runs"] += 1
