"""The model of parameter tables agrees with real ones.

RINGCOLL_TEST_TABLE_OPERATIONS is the number of operations in all runs together. A run's seed is in
the name of its test, which so repeats it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import table_driver
from table_faults import FaultsDriver
from table_members import Member

# Taken out of the environment, since the core warns of variables RINGCOLL_* that it has not.
OPERATIONS = int(os.environ.pop("RINGCOLL_TEST_TABLE_OPERATIONS", "10000"))
EACH = 1000  # in one run, with a store of its own
RUNS = max(1, OPERATIONS // EACH)

WHAT_COUNTS = {"push", "pull", "push_pull", "assign", "tick", "burst", "set_rule", "join", "make"}
WHAT_COUNTS |= {"drop", "commit", "come", "go", "pulls that wait", "refused"}


@pytest.fixture(scope="module")
def totals() -> Iterator[Counter[str]]:
    """What all runs have done. Many runs together leave nothing out."""
    done: Counter[str] = Counter()
    yield done
    print(done)
    if done["runs"] >= 10:
        assert set(done) >= WHAT_COUNTS, f"never done: {WHAT_COUNTS - set(done)}"


@pytest.mark.parametrize("seed", range(RUNS))
def test_model_agrees_in_one_process(seed: int, totals: Counter[str], tmp_path: Path) -> None:
    totals += table_driver.run(seed, EACH, tmp_path)
    totals["runs"] += 1


@pytest.mark.parametrize("seed", range(max(1, RUNS // 5)))
def test_model_agrees_while_processes_are_killed(
    seed: int, tmp_path: Path, member: Callable[..., Member]
) -> None:
    print(FaultsDriver(seed, tmp_path, member).run(rounds=5))
