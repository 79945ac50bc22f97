"""perf/cluster.py from end to end, quickly: with the installed library and no peer."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from harness import build

ringcoll = pytest.importorskip("ringcoll")
LIBRARY = Path(ringcoll.__file__).parent / "libringcoll.so"


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, build.PERF / "cluster.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.usefixtures("emulate")  # skips where there can be no hosts
def test_quick_run_measures_every_row_of_the_library(tmp_path: Path) -> None:
    done = run(
        "--quick",
        *("--peers", "ringcoll"),
        *("--library", LIBRARY, "--build", tmp_path / "build", "--output", tmp_path / "out"),
    )
    assert done.returncode == 0, done.stderr
    [document] = map(json.loads, (path.read_text() for path in tmp_path.glob("out/*.json")))
    assert document["failures"] == []
    [table] = document["tables"]
    assert {"ring", "halving_doubling"} <= set(table["rows"])
    measured = {(cell["peer"], cell["bytes"]) for cell in table["measurements"]}
    assert measured >= {(way, 1 << 20) for way in ["ringcoll", *table["rows"]]}
    assert all(cell["median_s"] > 0 for cell in table["measurements"])
    assert "## 2 × 2 ranks, 1 Gb/s" in done.stdout
    assert table["costs"]["source"] == "measured"
    priced = {(row, size) for row, size, seconds in table["predicted_s"] if seconds > 0}
    assert priced >= {("ring", 1 << 20), ("direct/ring", 1 << 20)}


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--shapes", "2y2", '"2y2" is not a shape'),
        ("--rates", "fast", '"fast" is not a rate'),
        ("--sizes", "3", '"3" is not a positive multiple'),
    ],
)
def test_options_that_cannot_be_are_named(option: str, value: str, said: str) -> None:
    done = run(option, value)
    assert done.returncode == 2
    assert said in done.stderr
