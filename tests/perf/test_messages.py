"""perf/messages.py from end to end, quickly, and its tables and verdicts."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness import build, messages, messages_report, peers, report
from harness.figures import KIB, MIB, OURS
from harness.messages import OPEN_MPI, PING, RANKS, STREAM, WINDOW
from harness.messages_report import Results, Sent

needs_cc = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler: cc is not on PATH")


@needs_cc
def test_quick_run_sends_both_ways_by_both_transports(tmp_path: Path) -> None:
    ringcoll = pytest.importorskip("ringcoll")
    library = Path(ringcoll.__file__).parent / "libringcoll.so"
    command = [sys.executable, build.PERF / "messages.py", "--quick", "--library", library]
    command += ["--build", tmp_path / "build", "--output", tmp_path / "out"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    [document] = map(json.loads, (path.read_text() for path in tmp_path.glob("out/*.json")))
    assert document["failures"] == []
    ours = [one for one in document["messages"] if one["peer"] == OURS]
    assert {(one["transport"], one["way"]) for one in ours} == {
        (transport, way) for transport in messages.TRANSPORTS for way in (PING, STREAM)
    }
    assert all(one["message_s"] > 0 for one in document["messages"])
    assert OPEN_MPI in document["peers"] or OPEN_MPI in document["missing"]
    assert "## window, tcp" in done.stdout


def test_arguments_that_are_none_are_told() -> None:
    command = [sys.executable, build.PERF / "messages.py", "--transports", "pigeon"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert '"pigeon" is none of shm, tcp' in done.stderr


def test_a_driver_wants_two_ranks(tmp_path: Path) -> None:
    ringcoll = pytest.importorskip("ringcoll")
    library = Path(ringcoll.__file__).parent / "libringcoll.so"
    spec = messages.ours(peers.Options(tmp_path), library, OURS, "shm")
    command = [*spec.command[:1], "socket", "3", f"file://{tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert 'ranks is "3"' in done.stderr


def sent(way: str, times: dict[int, tuple[float, float]]) -> Sent:
    """Of a call, by size: ours and Open MPI's."""
    results = report.Results(way, OURS, "", messages.TARGETS[way], {}, {})
    for size, (ours, other) in times.items():
        results.rounds[RANKS, OURS, size] = [ours, ours]
        results.rounds[RANKS, OPEN_MPI, size] = [other, other]
    return Sent("shm", way, results)


@pytest.fixture
def results() -> Results:
    return Results("T", "How.", {"cpu": "a CPU"}, {OURS: "1", OPEN_MPI: "5"})


def test_a_time_is_that_of_one_message(results: Results) -> None:
    calls = 2 * WINDOW
    results.sent = [
        sent(PING, {64: (2e-6, 1e-6)}),
        sent(STREAM, {MIB: (calls * 100e-6, calls * 200e-6)}),
    ]
    text = messages_report.to_markdown(results)
    assert "| 64 B | 1.00 µs | 0.50 µs (0.50) |" in text
    assert "| 1 MiB | 10,486 MB/s, 100 µs | 5,243 MB/s, 200 µs (2.00) |" in text
    [first, *_] = json.loads(messages_report.to_json(results))["messages"]
    assert first["message_s"] == 1e-6
    assert first["rounds_of_calls_s"] == [2e-6, 2e-6]


def test_targets_are_of_latencies_and_long_windows(results: Results) -> None:
    results.sent = [
        sent(PING, {64: (1.1, 1.0), KIB: (1.3, 1.0)}),
        sent(STREAM, {KIB: (9.0, 1.0), MIB: (1.0, 1.0), 4 * MIB: (1.1, 1.0)}),
    ]
    text = messages_report.to_markdown(results)
    assert "ping-pong, shm, 2 ranks: at most 1.2 times the time of the Open MPI" in text
    assert "**NOT MET** in 1 of 2 cells: 1 KiB (0.77)" in text
    assert "**NOT MET** in 1 of 2 cells: 4 MiB (0.91)" in text
    results.sent = [sent(PING, {})]
    assert "Open MPI: not measured" in messages_report.to_markdown(results)


def test_without_open_mpi_the_reason_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers.shutil, "which", lambda name: None)
    monkeypatch.setattr(peers, "version_of", lambda *command: "unknown")
    with pytest.raises(peers.Missing, match="is not on PATH"):
        messages.open_mpi(peers.Options(tmp_path), "shm")
