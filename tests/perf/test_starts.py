"""perf/starts.py: who starts where, and what is made of what was measured."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from harness import build, starts, starts_report
from harness.starts import COUNTING, Case, Start
from harness.starts_report import Counted, Results


@pytest.mark.parametrize(
    ("case", "parts"),
    [
        (Case(16, "loopback", "tcp"), [(0, 16)]),
        (Case(16, "tcp", "tcp"), [(0, 1), (1, 5), (6, 5), (11, 5)]),
        (Case(5, "tcp", "tcp"), [(0, 1), (1, 1), (2, 1), (3, 2)]),
        (Case(2, "tcp", "tcp"), [(0, 1), (1, 1)]),
    ],
)
def test_every_rank_has_a_process(case: Case, parts: list[tuple[int, int]]) -> None:
    assert case.parts() == parts


def test_a_start_is_from_the_first_to_the_last() -> None:
    def answer(ranks: int, begin: float, end: float) -> dict[str, float]:
        more = {"descriptors_before": 3, "descriptors": 3 + 10 * ranks, "kib_before": 1000}
        more |= {"kib": 1000 + 64 * ranks, "peak_kib": 1000 + 80 * ranks, "processor_s": 1.5}
        return {"ranks": ranks, "begin": begin, "end": end, **more}

    gathered = [{"descriptors": 103}, {"descriptors": 3 + 12 * 15}]
    found = starts.summarize([answer(1, 10.1, 12), answer(15, 10, 11)], gathered, {"outcomes": []})
    assert found.seconds == pytest.approx(2.0)
    assert found.processor_s == 3.0
    assert found.descriptors == [10, 10]
    assert found.after_gather == [100, 12]
    assert found.kib == [64, 64]
    assert found.peak_kib == [80, 80]


def test_a_start_waits_for_the_ports_of_those_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "sys/net/ipv4").mkdir(parents=True)
    (tmp_path / "sys/net/ipv4/ip_local_port_range").write_text("32768\t60999\n")
    waiting = [20_000, 7_000, 100]

    def show(_: float = 0) -> None:
        left = waiting.pop(0)
        (tmp_path / "net/sockstat").write_text(f"sockets: used 9\nTCP: inuse 1 tw {left} mem 1\n")

    show()
    monkeypatch.setattr(starts.time, "sleep", show)
    starts.wait_for_ports(1024, tmp_path)
    assert waiting == [100], "7,000 of 28,231 leave 20 for each of 1024 ranks"
    monkeypatch.setattr(starts, "TIME_WAIT_S", -1.0)
    with pytest.raises(starts.StartError, match="more ports"):
        starts.wait_for_ports(1200, tmp_path)


def a_start(seconds: float, **at_store: object) -> Start:
    return Start(seconds, 1.0, [9.0, 8.0, 8.5], [20.0, 9.0, 9.0], [900.0, 800, 850], [0], at_store)


def found(seconds: float, outcome: int) -> Results:
    counted = {"requests": {"GET": 2048, "PUT": 1024}, "outcomes": [outcome, 1024]}
    results = Results("Starts", "How.", {"cpu": "a CPU"}, {"ringcoll": "1"})
    results.rounds[Case(1024, "tcp", "file")] = [a_start(seconds), a_start(1.0), a_start(seconds)]
    results.rounds[Case(1024, "tcp", COUNTING)] = [a_start(99.0, **counted)]
    counts = {"requests": {"set": 2, "get": 3, "remove": 4}, "of_rank_0": 5, "most_of_another": 4}
    counts["bytes_set"] = 6000
    results.counted = [Counted(4096, [70], counts | {"outcomes": [4096 * 150]})]
    return results


def test_what_is_asked_for_is_judged() -> None:
    text = starts_report.to_markdown(found(4.0, 1024 * 150))
    assert "| 1024 | tcp | file | 4.00 s | 1.0 s | 9.0 / 8.5 | 20.0 / 9.0 | 900 / 850 KiB |" in text
    assert "| 1024 | tcp | counting | 3.0 | 153,600, 1,024 | 150, 1 |" in text
    assert "| 4096 | 1 | 70 B | 5 | 4 | 9 | 6,000 | 614,400 | 150 |" in text
    assert "1024 ranks start in at most 5 s: met" in text
    assert "an outcome has at most 200 bytes a rank and round: met" in text
    text = starts_report.to_markdown(found(6.0, 1024 * 300))
    assert "at most 5 s: **NOT MET**: 1024 ranks, tcp transport, file store (6.0 s)" in text
    assert "round: **NOT MET**: 1024 ranks, tcp transport, counting store, round 1 (300)" in text
    nothing = Results("Starts", "How.", {}, {})
    assert "at most 5 s: not measured" in starts_report.to_markdown(nothing)


def test_json_holds_every_start() -> None:
    document = json.loads(starts_report.to_json(found(4.0, 1024)))
    [measured, counting] = document["starts"]
    assert [start["seconds"] for start in measured["starts"]] == [4.0, 1.0, 4.0]
    assert counting["starts"][0]["at_store"]["requests"]["GET"] == 2048
    assert [target["met"] for target in document["targets"]] == [True, True]


def test_a_quick_run_starts_ranks_and_counts(tmp_path: Path) -> None:
    ringcoll = pytest.importorskip("ringcoll")
    library = Path(ringcoll.__file__).parent / "libringcoll.so"
    command = [sys.executable, build.PERF / "starts.py", "--quick", "--stores", "tcp,file"]
    # Where ci/setup makes the package.
    command += ["--library", library, "--objects", build.CHECKOUT / "build/dev"]
    command += ["--build", tmp_path / "build", "--output", tmp_path / "out"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    [document] = map(json.loads, (path.read_text() for path in tmp_path.glob("out/*.json")))
    assert document["failures"] == []
    assert {(case["transport"], case["store"]) for case in document["starts"]} == {
        (transport, store)
        for transport in ("tcp", "loopback")
        for store in ("tcp", "file", COUNTING)
    }
    for case in document["starts"]:
        [start] = case["starts"]
        assert start["seconds"] > 0 and min(start["descriptors"]) > 0
        if case["store"] == COUNTING:
            assert start["at_store"]["keys_left"] == 0
            assert len(start["at_store"]["records"]) == len(start["at_store"]["outcomes"]) > 0
    assert [one["ranks"] for one in document["counted"]] == [16, 64]
    rounds = len(document["counted"][0]["blob_bytes"])
    assert rounds > 1
    for one in document["counted"]:
        counts, ranks = one["counts"], one["ranks"]
        # Each rank says what it has once and reads what all have said once in a round, or less
        # where others do it for it; rank 0 asks nobody more than once for each round and rank.
        assert len(counts["outcomes"]) == rounds
        said = one["blob_bytes"]
        assert all(a <= b for a, b in zip(said, counts["records"], strict=True))
        assert all(ranks * a <= b for a, b in zip(said, counts["outcomes"], strict=True))
        # What each says, and the outcomes; and claims and a session.
        assert counts["bytes_set"] >= sum(counts["outcomes"]) + (ranks - 1) * sum(said)
        assert ranks - 1 <= counts["requests"]["set"] <= rounds * (ranks + 1)
        assert 0 < counts["most_of_another"] <= counts["of_rank_0"] <= 3 * rounds * ranks
