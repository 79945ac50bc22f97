"""perf/delta.py: what is made of what was measured, and that what is timed does what it says."""

import json
import subprocess

import numpy as np
import pytest
from harness import build, deltas
from harness.deltas import APPLY, DENSITIES, MAKE, NUMPY, READ, Results


def results_of(read: list[float], make: list[float], length: int) -> Results:
    results = Results("Deltas", "How.", {"cpu": "a CPU"}, bytes=1000)
    results.rounds[READ, None] = read
    for share in DENSITIES:
        for what in (MAKE, APPLY, NUMPY):
            results.rounds[what, share] = make
        results.lengths[share] = length
    return results


def test_the_ratio_is_of_the_same_round() -> None:
    results = results_of([1.0, 4.0, 9.0], [2.0, 4.0, 3.0], 20)
    assert results.read_ratio(0.01) == pytest.approx(1.0)


def test_targets_are_met_or_not() -> None:
    good, bad = results_of([0.7], [1.0], 40), results_of([0.69], [1.0], 41)
    assert [met for _, met, _ in deltas.targets(good)] == [True, True]
    assert [met for _, met, _ in deltas.targets(bad)] == [False, False]
    assert "NOT MET" in deltas.to_markdown(bad)
    assert "NOT MET" not in deltas.to_markdown(good)


def test_the_report_has_every_row() -> None:
    results = results_of([1.0], [2.0], 20)
    text = deltas.to_markdown(results)
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) == 1 + len(results.rounds)
    assert "| delta_make | 1.0% | 2000.0 ms | 0.0 GB/s | 0.50 | 2.000% |" in rows
    document = json.loads(deltas.to_json(results))
    assert {"what": MAKE, "changed": 0.01, "seconds": [2.0]} in document["rounds"]
    assert {"changed": 0.01, "bytes": 20} in document["lengths"]


def test_a_share_of_elements_changes(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(deltas, "_library", lambda path: None)
    bench = deltas.Bench(tmp_path / "none", tmp_path, 1 << 20)
    for share in DENSITIES:
        bench.change(share)
        changed = np.count_nonzero(bench.before != bench.now) / len(bench.now)
        assert share * 0.9 <= changed <= share
    bench.read()


def test_the_reader_reads_all_of_both(tmp_path) -> None:
    source = build.DRIVERS / "read_two.c"
    main = tmp_path / "main.c"
    main.write_text(
        f'#include "{source}"\n#include <stdio.h>\n'
        "int main(void) {\n"
        "  uint64_t a[101], b[101];\n"
        "  for (int i = 0; i < 101; i++) a[i] = i, b[i] = 1000;\n"
        '  printf("%d", (int)read_two(a, b, 101));\n}\n'
    )
    subprocess.run(["cc", "-O3", str(main), "-o", str(tmp_path / "main")], check=True)
    said = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True).stdout
    assert int(said) == 100 * 101 // 2 + 101 * 1000
