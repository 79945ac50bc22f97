"""The examples of parameter tables, in short runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import jobs
from support.stages import ROOT

EXAMPLES = ROOT / "examples" / "parameters"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
pytestmark = pytest.mark.timeout(600)


def results(folder: Path, script: str, *words: object, ranks: int = 2) -> list[dict[str, Any]]:
    """Runs a script under torchrun, and returns its lines of JSON."""
    command = [*map(str, (*TORCHRUN, ranks, EXAMPLES / script, *words))]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "error:" not in done.stderr, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_a_click_model_is_the_same_by_tables_and_by_an_allreduce() -> None:
    words = ("--rows", "20000", "--steps", "60", "--batch", "128")
    tables, allreduce = jobs.results("parameters/click_model.py", "RINGCOLL", *words)
    assert (tables["way"], allreduce["way"]) == ("tables", "allreduce")
    for loss in ("first_loss", "loss"):
        assert tables[loss] == pytest.approx(allreduce[loss], rel=1e-4)
    assert tables["loss"] < 0.95 * tables["first_loss"]


def test_digits_are_learnt_whoever_waits(tmp_path: Path) -> None:
    words = ("--steps", 120, "--pause", 0.02)
    found = results(tmp_path, "async_digits.py", *words, ranks=3)
    together, bounded, free = found
    assert [each["staleness"] for each in found] == ["0", "2", "none"]
    assert all(each["accuracy"] > 0.8 for each in found)
    assert together["steps"] == bounded["steps"] == [120] * 3
    # A rank counts a step after it was pushed: others may have had theirs counted later.
    assert together["ahead"] <= 2
    assert bounded["ahead"] <= 2 + 2
    assert sum(free["steps"]) in range(360, 360 + 3)
    assert free["steps"][0] > free["steps"][2]


def test_diloco_learns_with_few_exchanges(tmp_path: Path) -> None:
    words = ("--steps", 120, "--every", 20, "--width", 32)
    diloco, allreduce = results(tmp_path, "diloco.py", *words)
    assert (diloco["exchanges"], allreduce["exchanges"]) == (6, 120)
    assert diloco["digests"] == allreduce["digests"] == 1
    assert diloco["loss"] < 1.5
    assert allreduce["loss"] < 1.5


def test_diloco_without_waiting(tmp_path: Path) -> None:
    words = ("--way", "diloco", "--steps", 120, "--every", 20, "--width", 32)
    (found,) = results(tmp_path, "diloco.py", *words, "--staleness", "none")
    assert found["loss"] < 2.5  # momentum does worse with moves that come late
