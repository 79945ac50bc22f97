"""What ranks do with words that both look at, in all orders that C++'s memory model allows.

On x86 tests of the library itself see few of them, and under an emulator of another processor no
more. models.cc says what its models are, and how they belong to the library's code.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "models.cc"
CSRC = Path(__file__).parents[2] / "csrc"
MODELS = ["bell", "entry", "lent", "block", "log"]
WITHOUT_AN_ORDER = [
    "bell_not",
    "entry_stamp_not",
    "entry_released_not",
    "lent_not",
    "block_not",
    "log_stored_not",
    "log_loaded_not",
]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    program = tmp_path_factory.mktemp("orders") / "models"
    command = ["g++", "-std=c++20", "-O1", f"-I{CSRC}", str(SOURCE), "-o", str(program)]
    subprocess.run(command, check=True, timeout=300)
    return program


def simulate(models: Path, name: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([models, name], capture_output=True, text=True, timeout=300)


def test_each_model_is_tried(models):
    known = subprocess.run([models], check=True, capture_output=True, text=True).stdout.split()
    assert sorted(known) == sorted(MODELS + WITHOUT_AN_ORDER)


@pytest.mark.parametrize("name", MODELS)
def test_is_right_in_all_orders(models, name):
    done = simulate(models, name)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", WITHOUT_AN_ORDER)
def test_is_wrong_in_some_without_one_order(models, name):
    done = simulate(models, name)
    assert done.returncode == 1, done.stdout
    assert "USER ASSERT FAILED" in done.stdout or "DATA RACE" in done.stdout
