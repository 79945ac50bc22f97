"""perf/parameters.py: its report, its drivers, and quick runs."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from harness import build, mxnet_training, parameters_report, report, table_runs
from harness.figures import KIB, MIB, OURS
from harness.mxnet_training import IMAGES, Training
from harness.parameters_report import Results
from harness.places import ONE_HOST, Pythons
from harness.report import Visit
from harness.table_runs import (
    APART,
    DENSE,
    KINDS,
    MEMCPY,
    MXNET,
    MXNET_OURS,
    PEERS,
    PULL,
    PUSH,
    PUSH_PULL,
    RDMA,
    ROW_BYTES,
    SPARSE,
    TORCH,
    WAYS,
    Calls,
    Place,
)
from support import hosts

WIRE_16_MIB = 16 * MIB / 125e6


def calls(place: Place, kind: str, way: str, seconds: dict[tuple[str, int], float]) -> Calls:
    found = Calls.new(place, kind, way)
    for (peer, size), value in seconds.items():
        found.results.rounds[place.ranks, peer, size] = [value, None, 3 * value]
        spent = [0.1] * place.servers + [0.4] * place.workers
        found.results.visits[place.ranks, peer, size] = [
            Visit([value], 2, sum(spent), processor_of_rank_s=spent)
        ]
    return found


@pytest.fixture
def results() -> Results:
    found = Results("Parameter tables", "How.", {"cpu": "a CPU"}, {OURS: "1", MXNET: "2"})
    rows, small = 64 * ROW_BYTES, 16 * KIB
    one, pair = Place("1gbit"), Place("1gbit", 2, 2)
    found.calls = [
        calls(Place(), SPARSE, PUSH, {(OURS, rows): 4e-6, (MEMCPY, rows): 1e-6}),
        calls(Place(), SPARSE, PULL, {(OURS, rows): 6e-6, (TORCH, rows): 60e-6}),
        calls(
            Place(),
            DENSE,
            PUSH_PULL,
            {
                (OURS, small): 9e-6,
                (MXNET, small): 90e-6,
                (MXNET_OURS, small): 15e-6,
                (APART, small): 50e-6,
                (RDMA, small): 40e-6,
            },
        ),
        calls(one, DENSE, PUSH, {(OURS, 16 * MIB): WIRE_16_MIB / 1.9}),
        calls(pair, DENSE, PUSH, {(OURS, 16 * MIB): WIRE_16_MIB / 1.52}),
        calls(Place("1gbit", 1, 2), DENSE, PULL, {(OURS, 16 * MIB): WIRE_16_MIB}),
    ]
    training = Training("1gbit", "training", report.Results("", "", "", [], {}, {}), 4, 2, "mlp")
    for store, seconds in ((MXNET, 0.2), (MXNET_OURS, 0.1)):
        training.results.rounds[4, store, IMAGES] = [seconds]
    found.trainings = [training]
    return found


def test_times_are_those_of_the_link_with_most_to_do(results: Results) -> None:
    one, pair, shared = results.calls[3:]
    assert one.part_of_wire(OURS, 16 * MIB) == pytest.approx(0.95)
    assert pair.part_of_wire(OURS, 16 * MIB) == pytest.approx(0.76)
    # Both workers' bytes pass over the link of the only server.
    assert shared.part_of_wire(OURS, 16 * MIB) == pytest.approx(1.0)
    assert pair.bytes_s(OURS, 16 * MIB) == pytest.approx(1.52 * 125e6)
    assert results.calls[0].part_of_wire(OURS, 64 * ROW_BYTES) is None


def test_processor_time_is_of_a_gib_of_one_worker(results: Results) -> None:
    # Two calls of 16 MiB are a 32nd of a GiB, for each of two workers.
    workers, servers = results.calls[4].sides_s_a_gib(OURS, 16 * MIB) or (0, 0)
    assert (workers, servers) == (pytest.approx(0.4 * 32), pytest.approx(0.1 * 32))
    assert results.calls[4].sides_s_a_gib("none", MIB) is None


def test_targets_say_what_was_measured_where(results: Results) -> None:
    lines = parameters_report.to_markdown(results).splitlines()
    fast = "| one host, 64 rows: push and pull and push_pull at most 10.0 µs"
    scale = "| N servers on N hosts: at least 0.9 N times the load of one"
    wire = "| hosts at 1 Gb/s, from 16 MiB: at least 95% of the wire"
    for line in (
        f"{fast} | push | 0.80 of it | met |",
        f"{fast} | pull | 1.20 of it | **NOT MET** |",
        "| one host, 16 KiB: push_pull at most 20.0 µs | push_pull | 0.90 of it | met |",
        "| one host, 64 MiB: push_pull at most 60.0 ms | – | – | not measured |",
        f"{wire} | push, dense, 16 MiB, 2 servers, 2 workers | 0.76 | **NOT MET** |",
        f"{wire} | pull, dense, 16 MiB, 1 server, 2 workers | 1.00 | met |",
        "| RDMA at least 1.3 times as fast as TCP on the same device | push_pull, dense, 16 KiB | "
        "1.25 times | **NOT MET** |",
        f"{scale} | push, dense, 16 MiB, 2 servers, 2 workers, hosts at 1gbit | "
        "0.80 of N times | **NOT MET** |",
    ):
        assert line in lines
    results.calls, results.trainings = [], []
    text = parameters_report.to_markdown(results)
    assert text.count("| – | – | not measured |") == len(results.checks())
    assert not results.rounds


def test_tables_have_limits_ratios_and_mxnets_store_beside(results: Results) -> None:
    lines = parameters_report.to_markdown(results).splitlines()
    for line in (
        "| 64 rows | 2.00 µs (0.25) | 8.00 µs |",
        "| 64 rows | 12.0 µs | 120 µs (10.00) |",
        "| 16 MiB | 134 ms | 177 ms, 76.0% |",
        "| 16 MiB | 12.80 + 3.20 |",
        "| 1 server, 1 worker, one host, push_pull, dense, 16 KiB | 180 µs | 30.0 µs | 6.00 |",
        "| 1 server, 1 worker, one host, push_pull, dense, 16 KiB | 100 µs | 80.0 µs | 1.25 |",
        "| MLP, Module | 2 | 640 | 1,280 (2.00) | – |",
    ):
        assert line in lines


def test_the_data_can_be_read_back(results: Results) -> None:
    document = json.loads(parameters_report.to_json(results))
    [cell] = [one for one in document["calls"] if one["peer"] == TORCH]
    assert (cell["kind"], cell["way"], cell["bytes"]) == (SPARSE, PULL, 64 * ROW_BYTES)
    assert cell["rounds_s"] == [60e-6, None, 180e-6]
    assert {one["images_s"] for one in document["training"]} == {640, 1280}
    assert len(document["targets"]) == len(results.checks())


def test_the_plot_is_drawn(results: Results, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    parameters_report.plot(results, tmp_path / "plot.svg")
    text = (tmp_path / "plot.svg").read_text()
    assert "push, dense, 2 servers, 2 workers, hosts at 1gbit" in text
    assert f"mlp, {MXNET_OURS}" in text


def test_peers_that_are_not_here_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PEERS, MXNET, table_runs.Peer("mxnet", (), "no_such_module", "no-such"))
    monkeypatch.setattr(table_runs, "_RDMA_DEVICES", Path("/nowhere"))
    specs, missing = table_runs.find(Pythons(), [MEMCPY, MXNET, RDMA], Place(), MIB, [])
    assert [spec.name for spec in specs] == [MEMCPY]
    assert missing == {
        MXNET: f"no_such_module is not installed for {sys.executable}",
        RDMA: "there is no RDMA device: ci/rdma-vm has one",
    }


# --- Drivers ---


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(build.DRIVERS))
    return importlib.import_module("tables")


@pytest.mark.parametrize("servers", [1, 3])
def test_servers_have_all_of_a_table_between_them(driver: ModuleType, servers: int) -> None:
    np = pytest.importorskip("numpy")
    dense, sparse = driver.Case.of(DENSE, 4000), driver.Case.of(SPARSE, 100 * ROW_BYTES)
    seen, rows = np.zeros(1000), 0
    for server in range(servers):
        length, ids, which = dense.of_server(server, servers)
        assert ids is None
        assert len(seen[which]) == length
        seen[which] += 1
        length, ids, which = sparse.of_server(server, servers)
        assert ((ids >= 0) & (ids < length)).all()
        assert (sparse.ids[which] == ids * servers + server).all()
        rows += len(ids)
    assert (seen == 1).all()
    assert rows == 100


def test_ids_ascend_and_are_all_rows_of_the_largest_table(driver: ModuleType) -> None:
    few, all_rows = (driver.Case.of(SPARSE, count * ROW_BYTES) for count in (64, 1_000_000))
    assert (few.rows, few.values.shape) == (256, (64, 64))
    assert (few.ids[1:] > few.ids[:-1]).all()
    assert (all_rows.ids == range(1_000_000)).all()


class Table:
    """A worker of which the test says how it goes wrong."""

    def __init__(self, lost: int) -> None:
        self._lost = lost

    def make(self, case: Any) -> None:
        self._case, self._value = case, 0 * case.values

    def push(self) -> None:
        self._value += self._case.values

    def pull(self) -> None:
        self._case.out[:] = self._value
        self._case.out[: self._lost] = 0

    def push_pull(self) -> None:
        self.push()
        self.pull()

    def pulled(self) -> Any:
        return self._case.out

    def expected(self, pushes: int) -> Any:
        return self._case.values * pushes


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("lost", [0, 1])
def test_wrong_values_are_noticed(driver: ModuleType, way: str, lost: int) -> None:
    rank = driver.WorkerRank(Table(lost))
    assert rank.use([f"{way}/{DENSE}"]) == "using"
    assert rank.prepare(["4000"]) == "prepared"
    assert len(rank.run(["4000", "2", "3"]).split()) == 3
    if not lost:
        assert rank.verify(["4000"]) == "verified"
        return
    with pytest.raises(ValueError, match=f"{way}: 1 of 1000 values are wrong"):
        rank.verify(["4000"])


# --- Runs ---


def run(tmp_path: Path, *words: str) -> dict[str, Any]:
    command = [sys.executable, build.PERF / "parameters.py", "--quick", *words]
    command += ["--build", tmp_path / "build", "--output", tmp_path / "out"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    [path] = tmp_path.glob("out/*-quick.json")
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def test_quick_run_on_one_host(tmp_path: Path) -> None:
    pytest.importorskip("ringcoll")
    names = [MEMCPY, OURS, table_runs.ALLREDUCE]
    document = run(tmp_path, "--only", "host", "--peers", ",".join(names))
    assert document["failures"] == []
    cells = {(one["peer"], one["way"], one["kind"], one["bytes"]) for one in document["calls"]}
    whats = {(DENSE, size) for size in table_runs.QUICK_DENSE_SIZES}
    whats |= {(SPARSE, rows * ROW_BYTES) for rows in table_runs.QUICK_ROWS}
    wanted = {(name, way, *what) for name in (MEMCPY, OURS) for way in WAYS for what in whats}
    assert cells == wanted | {(table_runs.ALLREDUCE, PUSH_PULL, *what) for what in whats}
    assert all(one["median_s"] > 0 for one in document["calls"])


@pytest.mark.skipif(bool(hosts.missing()), reason=hosts.missing() or "hosts can be emulated")
def test_quick_run_of_several_servers_and_workers(tmp_path: Path) -> None:
    pytest.importorskip("ringcoll")
    names = f"{OURS},{table_runs.BACKED}"
    words = ["--only", "shapes", "--shapes", "2x2", "--ways", PUSH, "--rates", "1gbit"]
    document = run(tmp_path, *words, "--peers", names, "--sizes", "64K")
    assert document["failures"] == []
    found = {(one["place"], one["peer"], one["kind"]) for one in document["calls"]}
    places = [str(Place(rate, 2, 2)) for rate in (ONE_HOST, "1gbit")]
    assert found == {
        (place, peer, kind) for place in places for peer in names.split(",") for kind in KINDS
    }


@pytest.mark.skipif(bool(hosts.missing()), reason=hosts.missing() or "hosts can be emulated")
def test_training_without_mxnet_is_told(tmp_path: Path) -> None:
    if Pythons().find(PEERS[MXNET]):
        pytest.skip("there is an MXNet")
    found: dict[str, str] = {}
    settings = table_runs.Settings(Pythons(), [], [], 1, 0.01, 1.0, tmp_path)
    training = mxnet_training.measure(
        "1gbit", 1, "mlp", settings, lambda _, missing: found.update(missing)
    )
    assert set(found) == {MXNET, MXNET_OURS}
    assert not training.results.rounds


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--only", "tables"], '--only: "tables" is none of host, hosts'),
        (["--peers", "pigeon"], '--peers: "pigeon" is none of memcpy, ringcoll'),
        (["--ways", "pop"], '--ways: "pop" is none of push, pull, push_pull'),
        (["--rates", "fast"], '"fast" is not a rate'),
        (["--rates", ","], "--rates names none"),
        (["--sizes", "3"], '"3" is not a positive multiple of 4 bytes'),
        (["--shapes", "2"], '"2" is not a number of servers and of workers such as 2x4'),
    ],
)
def test_arguments_that_make_no_sense_are_told(words: list[str], reason: str) -> None:
    command = [sys.executable, build.PERF / "parameters.py", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert reason in done.stderr
