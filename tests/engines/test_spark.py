"""horovod.spark.run on a local Spark, under RINGCOLL as under GLOO, with equal weights."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
JOBS = Path(__file__).parent / "jobs"
BACKENDS = ("RINGCOLL", "GLOO")


@pytest.mark.skipif(not shutil.which("java"), reason="Spark needs Java: openjdk-17-jre-headless")
def test_run(tmp_path, run_job, check):
    output = tmp_path / "found.json"
    local = {"SPARK_LOCAL_DIRS": str(tmp_path), "PYSPARK_PYTHON": sys.executable}
    run_job([sys.executable, JOBS / "on_spark.py", output, *BACKENDS], **local)
    found = json.loads(output.read_text())
    weights = {name: check(found[name], name, ranks=2) for name in BACKENDS}
    assert weights["RINGCOLL"] == weights["GLOO"]
