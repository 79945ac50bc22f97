"""horovod.ray: its two executors start jobs under RINGCOLL as under GLOO, with equal weights."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("ray")
JOBS = Path(__file__).parent / "jobs"
BACKENDS = ("RINGCOLL", "GLOO")


def test_executors(tmp_path, run_job, check):
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # its sockets' names must be short
    output = tmp_path / "found.json"
    try:
        run_job([sys.executable, JOBS / "on_ray.py", folder, output, *BACKENDS])
    finally:
        shutil.rmtree(folder)
    found = json.loads(output.read_text())
    for executor in ("static", "elastic"):
        weights = {name: check(found[name][executor], name, ranks=2) for name in BACKENDS}
        assert weights["RINGCOLL"] == weights["GLOO"]
    assert [facts["resets"] for facts in found["RINGCOLL"]["elastic"]] == [1, 1]
