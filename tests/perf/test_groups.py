"""perf/groups.py from end to end, quickly, with the installed library."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import build, in_flight, splits
from harness.jobs import JobError

ringcoll = pytest.importorskip("ringcoll")
LIBRARY = Path(ringcoll.__file__).parent / "libringcoll.so"
HEADER = build.INCLUDE / "ringcoll/ringcoll.h"
needs_cc = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler: cc is not on PATH")


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, build.PERF / "groups.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


def measured(folder: Path, *arguments: str | Path) -> tuple[dict[str, Any], str]:
    done = run(
        *("--quick", "--library", LIBRARY, "--build", folder / "build", "--output", folder / "out"),
        *arguments,
    )
    assert done.returncode == 0, done.stderr
    [document] = map(json.loads, (path.read_text() for path in folder.glob("out/*.json")))
    assert document["failures"] == []
    return document, done.stdout


@needs_cc
def test_quick_run_splits_and_makes_every_way_beside_the_library_before(tmp_path: Path) -> None:
    # The other library is the same, but found elsewhere and built for a header of its own.
    other = tmp_path / "before"
    (other / "ringcoll").mkdir(parents=True)
    before = shutil.copy(LIBRARY, other / "libringcoll.so")
    header = shutil.copy(HEADER, other / "ringcoll/ringcoll.h")
    document, said = measured(
        tmp_path, "--hosts", "", "--before", before, "--before-header", header
    )
    libraries = {"ringcoll", "ringcoll before"}
    assert {one["library"] for one in document["splits"]} == libraries
    for one in document["splits"]:
        assert one["split_s"] > 0
        assert len(one["rounds"]) == 2
        assert all(round["used"]["threads"] == 0 for round in one["rounds"])
    assert {(one["library"], one["case"]) for one in document["shrinks"]} == {
        (library, f"3 ranks without one, {transport}")
        for library in libraries
        for transport in ("shm", "tcp")
    }
    for one in document["shrinks"]:
        for round in one["rounds"]:
            assert round["whole_s"] >= round["shrink_s"] > 0 and round["noticed_s"] > 0
        assert len(one["rounds"]) == 2
    calls = document["in_flight"]
    assert {(call["library"], call["way"]) for call in calls} == {
        (library, way) for library in libraries for way in in_flight.WAYS
    }
    assert {call["place"] for call in calls} == {"2 ranks, shm", "2 ranks, tcp"}
    assert all(call["median_s"] > 0 for call in calls)
    assert "## Calls in flight: 2 ranks, tcp" in said
    assert "round trip of a cache line between cores, after" in document["conditions"]


@needs_cc
@pytest.mark.usefixtures("emulate")  # skips where there can be no hosts
def test_quick_run_on_hosts(tmp_path: Path) -> None:
    document, _ = measured(tmp_path, "--no-splits", "--transports", "", "--hosts", "2x1")
    assert {call["place"] for call in document["in_flight"]} == {"2 × 1 ranks, 1 Gb/s"}
    assert all(call["median_s"] > 0 for call in document["in_flight"])


@needs_cc
def test_job_that_fails_says_why(tmp_path: Path) -> None:
    source = build.DRIVERS / "ringcoll_splits.c"
    driver = build.compile_for(LIBRARY, build.INCLUDE, source, tmp_path / "splits")
    with pytest.raises(JobError, match='members is "3", not a number from 1 to 2'):
        splits.measure(driver, splits.Splits(2, 3, 1, "shm"), {})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--transports", "shm,udp"], '"udp" is none of shm, tcp'),
        (["--hosts", "2y1"], '"2y1" is not a shape'),
        (["--rate", "fast"], '"fast" is not a rate'),
        (["--library", "none.so"], "--library: none.so is no file"),
        (["--before", LIBRARY], "--before and --before-header go together"),
        (["--before", LIBRARY, "--before-header", LIBRARY], "is no file ringcoll/ringcoll.h"),
    ],
)
def test_options_that_cannot_be_are_named(options: list[str | Path], said: str) -> None:
    done = run(*options)
    assert done.returncode == 2
    assert said in done.stderr
