"""perf/weights.py: what is made of what was measured, and a tiny run of ringcoll alone."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from harness import build, one_sided, report, store_runs, weights_report
from harness.figures import KIB, MIB, OURS
from harness.one_sided import (
    MEMCPY,
    NIXL,
    PEERS,
    PLAIN,
    READ,
    WRITE,
    Copies,
    Shares,
)
from harness.places import ONE_HOST, Pythons
from harness.report import Visit
from harness.store_runs import (
    BACKGROUND,
    COMMIT,
    FIRST,
    FUSE,
    HUGE_PAGES,
    MAPPED,
    SINCE,
    SMALL_PAGES,
    WHOLE,
    Stored,
)
from harness.weights_report import Results
from support import hosts

GIB = 1 << 30


def copies(
    rate: str, seconds: dict[tuple[str, int], float], way: str = READ, tensors: int = 1
) -> Copies:
    results = report.Results(way, OURS, "", [], {}, {})
    for (peer, size), value in seconds.items():
        results.rounds[2, peer, size] = [value, None, 3 * value]
        results.visits[2, peer, size] = [
            Visit([value], 2, 0.5, processor_of_rank_s=[0.1, 0.4]),
        ]
    return Copies(rate, way, results, tensors=tensors)


@pytest.fixture
def results() -> Results:
    found = Results("Weights", "How.", {"cpu": "a CPU"}, {OURS: "1", MEMCPY: "2"})
    one_host = {
        (MEMCPY, 16 * KIB): 1e-6,
        (OURS, 16 * KIB): 2e-6,
        (PLAIN, 16 * KIB): 3e-6,
        (MEMCPY, 64 * MIB): 5e-3,
        (OURS, 64 * MIB): 8e-3,
        (PLAIN, 64 * MIB): 1e-2,
        (NIXL, 64 * MIB): 32e-3,
    }
    wire = 64 * MIB / 125e6
    found.copies = [
        copies(ONE_HOST, one_host),
        copies("1gbit", {(OURS, 64 * MIB): wire / 1.8, (NIXL, 64 * MIB): wire}, WRITE),
        copies("1gbit", {(OURS, GIB): 4.3, (NIXL, GIB): 8.6}, tensors=400),
    ]
    seconds = [[wire, wire], [wire / 2, wire / 2], [wire / 2.5, None]]
    found.shares = [Shares("1gbit", 64 * MIB, {n + 1: list(s) for n, s in enumerate(seconds)})]
    found.stored = Stored(GIB, 400)
    for what, rate, answers in (
        (store_runs.MEMCPY, "", [[0.2], [0.4]]),
        (FIRST, "", [[1.2], [1.8]]),
        (COMMIT, "", [[0.22], [0.44]]),
        (BACKGROUND, "", [[0.001, 1.0], [0.003, 1.0]]),
        (MAPPED["npy", SMALL_PAGES], "", [[0.4, 0.1, 0.1]]),
        (MAPPED["safetensors", HUGE_PAGES], "", [[0.1, 0.1, 0.1]]),
        (FUSE, "", [[0.5, GIB, 0.1]]),
        (WHOLE, "1gbit", [[9.0, GIB], [9.0, GIB]]),
        (SINCE, "1gbit", [[0.5, GIB / 50], [0.6, GIB / 50]]),
    ):
        for answer in answers:
            found.stored.note(rate, what, [float(value) for value in answer])
    return found


def test_times_are_medians_and_ratios_of_the_same_round(results: Results) -> None:
    one = results.copies[0]
    assert one.seconds(OURS, 64 * MIB) == pytest.approx(16e-3)
    assert one.ratio(MEMCPY, 64 * MIB) == pytest.approx(5 / 8)
    assert one.ratio(MEMCPY, 64 * MIB, to=PLAIN) == pytest.approx(0.5)
    assert one.ratio(NIXL, 16 * KIB) is None
    assert one.part_of_wire(OURS, 64 * MIB) is None
    assert results.copies[1].part_of_wire(OURS, 64 * MIB) == pytest.approx(0.9)


def test_processor_time_is_of_a_gib_and_of_each_side(results: Results) -> None:
    found = results.copies[0].processor_s_a_gib(OURS, 64 * MIB)
    assert found == pytest.approx([0.1 * 8, 0.4 * 8])  # two calls of 64 MiB are an eighth
    assert results.copies[0].processor_s_a_gib("none", MIB) is None


def test_an_owner_adds_what_the_others_do_not_have(results: Results) -> None:
    [shares] = results.shares
    assert [shares.links(n) for n in (1, 2, 3)] == pytest.approx([1, 2, 2.5])
    assert [shares.added(n) for n in (1, 2, 3)] == pytest.approx([1, 1, 0.5])
    assert shares.added(4) is None


def test_targets_say_what_was_measured_where(results: Results) -> None:
    lines = weights_report.to_markdown(results).splitlines()
    for line in (
        "| one host, 64 MiB: at least 0.6 of memcpy's rate | read, ringcoll | 0.62 | met |",
        "| one host, 64 MiB: at least 0.6 of memcpy's rate | read, ringcoll plain memory | 0.50 | "
        "**NOT MET** |",
        "| one host, 16 KiB: at most 5 µs | read, ringcoll | 4.00 µs | met |",
        "| one host, 16 KiB: at most 5 µs | read, ringcoll plain memory | 6.00 µs | **NOT MET** |",
        "| two hosts at 1 Gb/s, from 16 MiB: at least 95% of the wire | write, 64 MiB | 0.90 | "
        "**NOT MET** |",
        "| two hosts at 1 Gb/s, from 16 MiB: at least 95% of the wire | read of 400 tensors, "
        "1024 MiB | 1.00 | met |",
        "| each owner of a shared read adds at least 0.9 of its link | 1gbit, owner 3 | "
        "0.50 links | **NOT MET** |",
        "| commit: at most 1.2 times a memcpy of the state dict | one host | 1.10 | met |",
        "| commit(wait=False): pauses at most 2 ms | one host | 2.00 ms | met |",
        "| a delta of 1%: at most 4% of the bytes | two hosts at 1gbit | 2.00 % | met |",
        "| a delta of 1%: at least 10 times as fast as the whole | two hosts at 1gbit | 16.50 | "
        "met |",
        "| files, mapped and copied: at least 0.9 of memcpy's rate | npy, pages of 4 KiB | 0.25 | "
        "**NOT MET** |",
        "| files, mapped and copied: at least 0.9 of memcpy's rate | safetensors, huge pages | "
        "1.00 | met |",
        "| a mount, read cold: at least 1 GB/s | one host | 2.15 GB/s | met |",
    ):
        assert line in lines
    results.copies, results.shares, results.stored = [], [], Stored()
    text = weights_report.to_markdown(results)
    assert text.count("| – | – | not measured |") == len(results.checks())
    assert not results.rounds


def test_tables_have_limits_ratios_and_both_sides(results: Results) -> None:
    lines = weights_report.to_markdown(results).splitlines()
    assert "| 64 MiB | 10.0 ms, 6.7 GB/s (0.62) | 16.0 ms, 4.2 GB/s |" in "\n".join(lines)
    assert "|  | wire | ringcoll | NIXL |" in lines
    assert "| 64 MiB | 0.54 s".replace("0.54 s", "537 ms") in "\n".join(lines)
    assert "| 64 MiB | 3.20 + 0.80 |" in "\n".join(lines)
    assert "| 2 | 268 ms | 2.00 links | 1.00 links |" in lines
    assert "| commit | 330 ms | 3.25 GB/s | 1.10 | – |" in lines
    assert "| each of the first 3 commits | 1.50 s | 0.72 GB/s | 5.00 | – |" in lines
    mapped = "files, mapped and copied"
    assert f"| {mapped}: npy, pages of 4 KiB | 400 ms | 2.68 GB/s | 4.00 | – |" in lines
    assert f"| {mapped} again: npy, pages of 4 KiB | 100 ms | 10.74 GB/s | 1.00 | – |" in lines
    assert "## read of 400 tensors, two hosts at 1gbit" in lines
    assert "| get_state_dict(since=), 1% changed | 550 ms | 1.95 GB/s | – | 20.5 MiB |" in lines


def test_the_data_can_be_read_back(results: Results) -> None:
    document = json.loads(weights_report.to_json(results))
    [cell] = [
        one
        for one in document["copies"]
        if (one["place"], one["peer"], one["bytes"]) == ("one host", OURS, 64 * MIB)
    ]
    assert cell["rounds_s"] == [8e-3, None, 24e-3]
    assert [share["owners"] for share in document["shares"][0]["owners"]] == [1, 2, 3]
    assert {one["what"] for one in document["store"]["rounds"]} >= {COMMIT, SINCE}
    assert len(document["targets"]) == len(results.checks())


def test_the_plot_is_drawn(results: Results, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    weights_report.plot(results, tmp_path / "plot.svg")
    text = (tmp_path / "plot.svg").read_text()
    assert "write, two hosts at 1gbit" in text
    assert "read of 400 tensors, 1024 MiB, two hosts at 1gbit" in text
    assert "64 MiB from several owners" in text


def test_peers_that_are_not_here_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PEERS, NIXL, one_sided.Peer("nixl", (), "no_such_module", "no-such"))
    specs, missing = one_sided.find(Pythons(), [MEMCPY, NIXL], MIB, [])
    assert [spec.name for spec in specs] == [MEMCPY]
    assert missing == {NIXL: f"no-such is not installed for {sys.executable}"}


def test_a_second_python_is_asked_for_peers(tmp_path: Path) -> None:
    assert Pythons.of(tmp_path / "none").paths == (sys.executable,)
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\necho 7.0\n")
    other.chmod(0o755)
    found = Pythons.of(other).find(one_sided.Peer("x", (), "no_such_module", "no-such"))
    assert found == (str(other), "7.0")


def test_only_copies_that_a_peer_can_make_are_asked_of_it() -> None:
    tensorflow, plain = PEERS[one_sided.TENSORFLOW], PEERS[PLAIN]
    assert tensorflow.can_copy(64 * MIB, 1)
    assert not tensorflow.can_copy(256 * MIB, 1)
    assert tensorflow.can_copy(GIB, 400)
    assert plain.can_copy(256 * MIB, 1)
    assert not plain.can_copy(GIB, 400)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(build.DRIVERS))
    return importlib.import_module("one_sided")


def test_pieces_are_all_bytes_and_begin_where_tensors_do(driver: ModuleType) -> None:
    assert driver.pieces("read", 1000) == driver.pieces("read-2", 1000) == [slice(0, 1000)]
    found = driver.pieces("read/3", 1000)
    assert found == [slice(0, 320), slice(320, 640), slice(640, 1000)]


@pytest.mark.parametrize("way", [READ, WRITE, "read/7"])
@pytest.mark.parametrize("lost", [0, 1])
def test_wrong_bytes_are_noticed(
    driver: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, lost: int
) -> None:
    class Memory:
        def __init__(self) -> None:
            self.memory = self.local = driver.memory(1 << 18)

        def copy(self, way: str, size: int) -> None:
            source, out = (owner, user) if driver.is_read(way) else (user, owner)
            for piece in driver.pieces(way, size - lost):
                out.memory[piece] = source.memory[piece]

    owner, user = Memory(), Memory()
    ranks = []
    for rank, role in enumerate((owner, user)):
        monkeypatch.setenv("PERF_RANKS", str(rank))
        words = ["driver", str(tmp_path / "socket"), str(tmp_path), "2", str(1 << 18)]
        monkeypatch.setattr(sys, "argv", words)
        ranks.append(driver._Rank(driver.Start(), role))
    said = [rank.use([way]) for rank in ranks]
    said += [rank.prepare(["200000"]) for rank in ranks]
    said += [rank.run(["200000", "1", "2"]) for rank in ranks]
    assert said[-2] == "times 0.000000000"
    if not lost:
        assert [rank.verify(["200000"]) for rank in ranks] == ["verified"] * 2
        return
    with pytest.raises(ValueError, match=f"{way}: 1 of 200000 bytes are wrong"):
        for rank in ranks:
            rank.verify(["200000"])


def run(tmp_path: Path, *words: str) -> dict:
    command = [sys.executable, build.PERF / "weights.py", "--quick", "--peers", f"{MEMCPY},{OURS}"]
    command += ["--build", tmp_path / "build", "--output", tmp_path / "out", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    [path] = tmp_path.glob("out/*-quick.json")
    return json.loads(path.read_text())


def test_quick_run_reads_and_writes_on_one_host(tmp_path: Path) -> None:
    pytest.importorskip("ringcoll")
    document = run(tmp_path, "--parts", "copies")
    assert document["failures"] == []
    cells = {(one["peer"], one["way"], one["tensors"], one["bytes"]) for one in document["copies"]}
    whats = [(way, 1, size) for way in (READ, WRITE) for size in one_sided.QUICK_SIZES]
    whats.append((READ, 8, 4 * MIB))
    assert cells == {(peer, *what) for peer in (MEMCPY, OURS) for what in whats}
    assert all(one["median_s"] > 0 for one in document["copies"])
    assert set(document["peers"]) == {MEMCPY, OURS}


@pytest.mark.skipif(bool(hosts.missing()), reason=hosts.missing() or "hosts can be emulated")
def test_quick_run_between_hosts_shares_reads(tmp_path: Path) -> None:
    pytest.importorskip("ringcoll")
    document = run(tmp_path, "--parts", "hosts,shares", "--rates", "1gbit", "--owners", "2")
    assert document["failures"] == []
    # The shaper passes some bytes at full speed, so that the rate may be above that of the wire.
    large = [one for one in document["copies"] if one["bytes"] == MIB]
    assert len(large) == 2
    assert all(0 < one["part_of_wire"] < 1.6 for one in large)
    [shares] = document["shares"]
    assert [one["owners"] for one in shares["owners"]] == [1, 2]


def test_quick_run_of_the_store(tmp_path: Path) -> None:
    pytest.importorskip("ringcoll")
    pytest.importorskip("torch")
    document = run(tmp_path, "--parts", "commits,files")
    assert document["failures"] == []
    what = {one["what"]: one["answers"] for one in document["store"]["rounds"]}
    assert what.keys() >= {store_runs.MEMCPY, FIRST, COMMIT, BACKGROUND, WHOLE, SINCE}
    assert what.keys() >= {MAPPED[kind, SMALL_PAGES] for kind in store_runs.FORMATS}
    # These two need root, and /dev/fuse.
    missing = {f"files of the store on {HUGE_PAGES}", store_runs.MOUNT} & document["missing"].keys()
    assert set(document["missing"]) == missing
    if store_runs.MOUNT not in missing:
        assert all(size > 4 * MIB for _, size, _ in what[FUSE])


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--parts", "stores"], '--parts: "stores" is none of copies, hosts'),
        (["--peers", "pigeon"], '--peers: "pigeon" is none of memcpy, ringcoll'),
        (["--rates", "fast"], '--rates: "fast" is not a rate'),
        (["--rates", ","], "--rates names none"),
        (["--sizes", "3"], '"3" is not a positive multiple of 4 bytes'),
    ],
)
def test_arguments_that_make_no_sense_are_told(words: list[str], reason: str) -> None:
    command = [sys.executable, build.PERF / "weights.py", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert reason in done.stderr
