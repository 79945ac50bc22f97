"""The frame of every command: what it writes, where, and what it says if there is nothing."""

import json
from pathlib import Path

import pytest
from harness import program, report


@pytest.fixture
def results() -> report.Results:
    return report.Results(
        title="Allreduce",
        ours="ringcoll",
        method="How.",
        targets=[],
        machine={"cpu": "Brand", "cores": "2 of 2 usable"},
        peers={"ringcoll": "1.0"},
        conditions={"guest": "yes"},
        missing={"gloo": "no torch"},
    )


def test_what_was_measured_is_written_and_printed(
    results: report.Results, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure() -> None:
        results.rounds[2, "ringcoll", 4] = [1e-6]

    assert program.measure_and_write(results, measure, tmp_path, "it", quick=True) == 0
    found = {path.suffix: path for path in tmp_path.iterdir()}
    assert {path.stem for path in found.values()} == {"it-brand-2-cores-quick"}
    assert found.keys() == {".json", ".md", ".svg"}
    conditions = json.loads(found[".json"].read_text())["conditions"]
    assert conditions["guest"] == "yes" and "load average before" in conditions
    said = capsys.readouterr()
    assert said.out.strip() == found[".md"].read_text().strip()
    assert "without gloo: no torch" in said.err


def test_nothing_measured_is_a_failure(
    results: report.Results, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.measure_and_write(results, lambda: None, tmp_path, "it") == 1
    assert not list(tmp_path.iterdir())
    assert "nothing could be measured" in capsys.readouterr().err


def test_a_plot_is_left_out_where_it_says_nothing(results: report.Results, tmp_path: Path) -> None:
    results.rounds[2, "ringcoll", 4] = [1e-6]
    program.measure_and_write(results, lambda: None, tmp_path, "it", with_plot=False)
    assert not list(tmp_path.glob("*.svg"))
