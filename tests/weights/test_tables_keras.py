"""Tables in programs of Keras 3, which has its backend for a whole process."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

JOB = Path(__file__).parent / "jobs" / "keras_tables.py"

# It is not imported: that would also import its backend into this process.
pytestmark = pytest.mark.skipif(
    not importlib.util.find_spec("keras"), reason="keras is not installed"
)


def _run(backend: str, word: str) -> Any:
    env = os.environ | {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run(
        [sys.executable, "-P", str(JOB), word],
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("backend", "word"), [("torch", "fit"), ("tensorflow", "fit"), ("tensorflow", "eager")]
)
def test_a_model_learns_what_it_does_with_keras_own_embedding(backend: str, word: str) -> None:
    if not importlib.util.find_spec(backend):
        pytest.skip(f"{backend} is not installed")
    found = _run(backend, word)
    assert found["losses"] == pytest.approx(found["wanted"], rel=1e-4)
    assert found["losses"][1] < found["losses"][0]
    assert found["rows"] < 1e-5
    assert found["version"] == 1
    assert found["weights"] == ([] if backend == "torch" else [[]])
    assert found["output"] == [None, 1]


def test_another_backend_is_refused() -> None:
    assert "KERAS_BACKEND" in _run("torch", "refused")["message"]
