"""perf/fused.py from end to end, quickly, with the installed library."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from harness import build

ringcoll = pytest.importorskip("ringcoll")
LIBRARY = Path(ringcoll.__file__).parent / "libringcoll.so"


@pytest.mark.usefixtures("emulate")  # skips where there can be no hosts
def test_a_quick_run_measures_many_tensors_beside_one(tmp_path: Path) -> None:
    command = [sys.executable, build.PERF / "fused.py", "--quick", "--library", LIBRARY]
    command += ["--build", tmp_path / "build", "--output", tmp_path / "out"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    [document] = map(json.loads, (path.read_text() for path in tmp_path.glob("out/*.json")))
    assert document["failures"] == []
    ratios = {cell["peer"]: cell["ratio_to_ours"] for cell in document["measurements"]}
    assert set(ratios) == {"ringcoll", "16 tensors", "161 tensors", "1024 tensors"}
    assert all(ratio > 0 for name, ratio in ratios.items() if name != "ringcoll")
    assert "## 2 × 1 ranks, unshaped, 2 ranks" in done.stdout
