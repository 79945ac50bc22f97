"""The table, the JSON document and the plot that are committed."""

import json
from pathlib import Path

import pytest
from harness import figures, report
from harness.figures import MIB


def test_table_has_medians_and_ratios(results: report.Results) -> None:
    assert "| 4 B | 1.00 µs | 7.00 µs | 7.00 |" in report.to_markdown(results)


def test_missed_target_stands_out(results: report.Results) -> None:
    text = report.to_markdown(results)
    assert "| **2.00** (target 5.00) |" in text
    assert "**NOT MET** at 1 of 2 sizes: 1 MiB (2.00)" in text


def test_memory_is_judged_by_its_bound(results: report.Results) -> None:
    assert "= 80 MiB: **NOT MET** (most: 90.0 MiB)" in report.to_markdown(results)
    assert not results.all_met()


def test_absent_peer_is_named_with_its_reason(results: report.Results) -> None:
    results.missing["MPICH"] = "mpicc.mpich\nis not on PATH"
    assert "- MPICH: mpicc.mpich is not on PATH" in report.to_markdown(results)


def test_without_ours_there_are_times_but_no_ratios(results: report.Results) -> None:
    del results.peers["ringcoll"]
    results.rounds = {k: v for k, v in results.rounds.items() if k[1] != "ringcoll"}
    assert "|  | gloo |\n" in report.to_markdown(results)


def test_json_holds_every_round(results: report.Results) -> None:
    document = json.loads(report.to_json(results))
    [cell] = [m for m in document["measurements"] if (m["peer"], m["bytes"]) == ("gloo", MIB)]
    assert cell["rounds_s"] == [2e-3, 3e-3]
    assert cell["ratio_to_ours"] == 2.0
    assert document["targets"][0]["met"] is False


def test_plot_is_written(results: report.Results, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: no plot")
    paths = report.write(results, tmp_path / "sub" / "allreduce")
    assert [p.suffix for p in paths] == [".json", ".md", ".svg"]
    assert "<svg" in paths[2].read_text()


def test_labels_replace_sizes(results: report.Results) -> None:
    results.labels[MIB] = "a set of gradients"
    assert "| a set of gradients | 1.00 ms |" in report.to_markdown(results)
    assert figures.format_size(MIB) not in report.to_markdown(results).split("## Targets")[0]
