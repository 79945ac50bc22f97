"""Tables and verdicts of measurements on emulated hosts."""

import json
from pathlib import Path

import pytest
from harness import cluster_report, report
from harness.cluster_report import Results, Table
from harness.figures import KIB, MIB
from harness.report import Visit
from harness.shapes import UNSHAPED, Case, Shape


def table_of(case: Case, seconds: dict[str, dict[int, float]], **ways: object) -> Table:
    results = report.Results("", "ringcoll", "", [], {}, dict.fromkeys(seconds, ""))
    ranks = case.shape.size
    for peer, by_size in seconds.items():
        for size, value in by_size.items():
            results.rounds[ranks, peer, size] = [value, value]
            results.visits[ranks, peer, size] = [Visit([value, value, 1.5 * value], 1, 3 * value)]
    return Table(case, results, **ways)


@pytest.fixture
def table() -> Table:
    seconds = {
        "ringcoll": {KIB: 1e-4, 64 * MIB: 0.6},
        "gloo": {KIB: 1e-3, 64 * MIB: 0.9},
        "ring": {KIB: 2e-4, 64 * MIB: 0.8},
        "direct/ring": {KIB: 5e-5, 64 * MIB: 0.5},
    }
    case = Case(Shape.parse("2x2"), "1gbit", (KIB, 64 * MIB))
    return table_of(case, seconds, rows=["ring", "direct/ring"])


@pytest.fixture
def found(table: Table) -> Results:
    return Results("T", "How.", {"cpu": "a CPU"}, {"ringcoll": "1"}, tables=[table])


def test_figures_of_a_cell(table: Table) -> None:
    assert table.peers == ["gloo"]
    assert table.best(table.rows, 64 * MIB) == "direct/ring"
    assert table.regret(table.rows, 64 * MIB) == pytest.approx(1.2)
    assert table.of_bound(64 * MIB) == pytest.approx(0.537 / 0.6, rel=1e-3)
    assert table.unevenness(KIB) == pytest.approx(1.5)
    assert table.processor_s_per_gib(64 * MIB) == pytest.approx(3 * 0.6 / 3 * 16)


def test_table_and_verdicts_name_what_is_missed(found: Results) -> None:
    text = cluster_report.to_markdown(found)
    assert "## 2 × 2 ranks, 1 Gb/s" in text
    assert "| 64 MiB | 600 ms | 0.89 | 1.50 | 9.6 | direct/ring | 1.20 | 900 ms (1.50) |" in text
    assert "| 1 KiB | 200 µs | 50.0 µs |" in text
    where = "2 × 2 ranks, 1 Gb/s, 64 MiB"
    assert f"95 % of the bound: **NOT MET** in 1 of 1 cells: {where} (0.89)" in text
    assert "from 16 MiB: at least 1.4 times as fast as gloo: met in all 1 cells" in text
    assert "1 KiB: at least 20 times as fast as gloo: **NOT MET**" in text
    assert "regret at most 1.1: **NOT MET** in 2 of 2 cells" in text
    assert "no size where a smaller one takes longer: met" in text
    assert "10 Gb/s: never slower than gloo: not measured" in text


def test_streams_and_racks_have_verdicts_of_their_own(found: Results) -> None:
    seconds = {"ringcoll": {MIB: 2e-3}, "1 streams": {MIB: 1e-3}}
    case = Case(Shape.parse("2x1"), UNSHAPED, (MIB,))
    found.tables = [table_of(case, seconds, streams=["1 streams"])]
    assert "number of streams (1.05): **NOT MET**" in cluster_report.to_markdown(found)
    seconds = {"ringcoll": {16 * MIB: 1.5}, "names": {16 * MIB: 4.0}}
    case = Case(Shape.parse("4x1"), "1gbit", (16 * MIB,), racks=True)
    found.tables = [table_of(case, seconds, without="names")]
    text = cluster_report.to_markdown(found)
    assert "2 times as fast as by the order of names: met in all 1 cells" in text
    assert "95 % of the bound: not measured" in text


def test_prices_are_held_against_what_was_measured(table: Table, found: Results) -> None:
    assert "prices within 10 % of the emulated hosts, in the median: not measured" in (
        cluster_report.to_markdown(found)
    )
    table.predicted = {("ring", KIB): 1.6e-4, ("ring", 64 * MIB): 0.8, ("direct/ring", KIB): 5.5e-5}
    assert table.of_predicted("ring", KIB) == pytest.approx(0.8)
    assert table.of_predicted("direct/ring", 64 * MIB) is None
    text = cluster_report.to_markdown(found)
    assert "| predicted / measured | ring | direct/ring |" in text
    assert "| 1 KiB | 0.80 | 1.10 |" in text
    assert "| 64 MiB | 1.00 | – |" in text
    case = "2 × 2 ranks, 1 Gb/s"
    assert "in the median: met in all 1 cells" in text
    table.predicted["ring", KIB] = 1e-4
    text = cluster_report.to_markdown(found)
    assert f"all rows and sizes: **NOT MET** in 1 of 1 cells: {case} (2.00)" in text


def test_json_holds_every_round(found: Results) -> None:
    [table] = json.loads(cluster_report.to_json(found))["tables"]
    assert table["ranks_of_hosts"] == [2, 2]
    [cell] = [m for m in table["measurements"] if (m["peer"], m["bytes"]) == ("gloo", KIB)]
    assert cell["rounds_s"] == [1e-3, 1e-3]
    assert cell["ratio_to_ours"] == pytest.approx(10)


def test_plot_is_written(found: Results, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: no plot")
    paths = report.write(found, tmp_path / "cluster", form=cluster_report)
    assert [path.suffix for path in paths] == [".json", ".md", ".svg"]
    assert "<svg" in paths[2].read_text()
