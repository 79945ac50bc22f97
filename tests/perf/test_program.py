"""The frame of every command: what it writes, where, and what it says if there is nothing."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from harness import program, report


@pytest.fixture
def nothing_yet(results: report.Results) -> report.Results:
    return replace(
        results,
        machine={"cpu": "Brand", "cores": "2 of 2 usable"},
        conditions={"guest": "yes"},
        missing={"mpich": "not installed"},
        rounds={},
        memory=[],
    )


def test_what_was_measured_is_written_and_printed(
    nothing_yet: report.Results, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure() -> None:
        nothing_yet.rounds[2, "ringcoll", 4] = [1e-6]

    assert program.measure_and_write(nothing_yet, measure, tmp_path, "it", quick=True) == 0
    found = {path.suffix: path for path in tmp_path.iterdir()}
    assert {path.stem for path in found.values()} == {"it-brand-2-cores-quick"}
    assert found.keys() == {".json", ".md", ".svg"}
    conditions = json.loads(found[".json"].read_text())["conditions"]
    assert conditions["guest"] == "yes" and "load average before" in conditions
    said = capsys.readouterr()
    assert said.out.strip() == found[".md"].read_text().strip()
    assert "without mpich: not installed" in said.err


def test_nothing_measured_is_a_failure(
    nothing_yet: report.Results, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.measure_and_write(nothing_yet, lambda: None, tmp_path, "it") == 1
    assert not list(tmp_path.iterdir())
    assert "nothing could be measured" in capsys.readouterr().err


def test_a_plot_is_left_out_where_it_says_nothing(
    nothing_yet: report.Results, tmp_path: Path
) -> None:
    nothing_yet.rounds[2, "ringcoll", 4] = [1e-6]
    program.measure_and_write(nothing_yet, lambda: None, tmp_path, "it", with_plot=False)
    assert not list(tmp_path.glob("*.svg"))
