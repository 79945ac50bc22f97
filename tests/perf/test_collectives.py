"""perf/collectives.py from end to end, quickly; what its ranks are checked for; and its report."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness import build, collectives, collectives_report, report
from harness.collectives import COLLECTIVES
from harness.collectives_report import Results
from harness.distance import FAR, NEAR
from harness.figures import KIB, MIB, OURS
from harness.jobs import Job, JobError, Spec

needs_cc = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler: cc is not on PATH")

# Ranks that move nothing.
IDLE_DRIVER = """
#include "bench.h"
static void barrier(void* state) { (void)state; }
static void call(void* state, const float* input, float* output, int64_t count) {
  (void)state; (void)input; (void)output; (void)count;
}
int main(int argc, char** argv) {
  int size = (int)parse_number(argc == 3 ? argv[2] : "", 1, 64, "ranks");
  struct peer peer = {.rank = fork_ranks(size), .size = size, .barrier = barrier, .call = call};
  serve(&peer, argv[1]);
  join_ranks();
  return 0;
}
"""


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, build.PERF / "collectives.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


@needs_cc
def test_quick_run_measures_every_collective(tmp_path: Path) -> None:
    ringcoll = pytest.importorskip("ringcoll")
    library = Path(ringcoll.__file__).parent / "libringcoll.so"
    done = run(
        "--quick",
        *("--peers", "ringcoll", "--ranks", "2,3", "--sizes", "4,1K,1M"),
        *("--library", library, "--build", tmp_path / "build", "--output", tmp_path / "out"),
    )
    assert done.returncode == 0, done.stderr
    [document] = map(json.loads, (path.read_text() for path in tmp_path.glob("out/*.json")))
    assert document["failures"] == []
    wanted = {
        (name, ranks, size)
        for name in COLLECTIVES
        for ranks in (2, 3)
        for size in collectives.sizes_of(name, [4, KIB, MIB], ranks)
    }
    found = {(m["collective"], m["ranks"], m["bytes"]) for m in document["measurements"]}
    assert found <= wanted
    # Nothing is left of a case if the host moved the cores in each of its visits.
    assert len(wanted - found) <= document["visits_that_do_not_count"]
    assert "## broadcast, 3 ranks" in done.stdout


@pytest.mark.parametrize("option", ["--collectives", "--peers"])
def test_names_that_are_none_are_told(option: str) -> None:
    done = run(option, "pigeon")
    assert done.returncode == 2
    assert f'{option}: "pigeon" is none of ' in done.stderr


def test_each_rank_has_an_element_of_its_part() -> None:
    assert collectives.sizes_of("alltoall", [4, 8, 64], 2) == [8, 64]
    assert collectives.sizes_of("reduce_scatter", [4, 64], 3) == [12, 72]
    assert collectives.sizes_of("broadcast", [4, 64], 3) == [4, 64]


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Spec:
    folder = tmp_path_factory.mktemp("build")
    (folder / "driver.c").write_text(IDLE_DRIVER)
    program = build.compile_c("cc", [folder / "driver.c"], folder / "driver", [])
    return Spec("idle", [str(program), "{socket}", "{ranks}"])


@needs_cc
@pytest.mark.parametrize("name", COLLECTIVES)
def test_what_has_not_come_is_noticed(idle: Spec, tmp_path: Path, name: str) -> None:
    [spec] = collectives.told([idle], name)
    with Job(spec, 2, tmp_path) as job, pytest.raises(JobError, match=r"element 0 is .* instead"):
        job.ask("run 64 1 1", "times")


@needs_cc
def test_a_size_that_has_no_parts_is_refused(idle: Spec, tmp_path: Path) -> None:
    [spec] = collectives.told([idle], "alltoall")
    with Job(spec, 3, tmp_path) as job, pytest.raises(JobError, match="64 bytes are not as many"):
        job.ask("run 64 1 1", "times")


@needs_cc
def test_an_unknown_collective_is_told(idle: Spec, tmp_path: Path) -> None:
    with pytest.raises(JobError, match='PERF_COLLECTIVE is "pigeon"'):
        Job(*collectives.told([idle], "pigeon"), 2, tmp_path)


@pytest.fixture
def results() -> Results:
    """One collective as fast as Open MPI near, and slower far; one whose distance nobody took."""
    names = {OURS: "1", "Open MPI": "5"}
    found = Results("T", "How.", {"cpu": "a CPU"}, names)
    for name in ("allgather", "alltoall"):
        of = report.Results(name, OURS, "", collectives.targets([2]), {}, names)
        of.rounds = {(2, OURS, KIB): [2e-6, 2e-6], (2, "Open MPI", KIB): [2e-6, 1e-6]}
        found.of[name] = of
    found.of["allgather"].states = {key: [NEAR, FAR] for key in found.of["allgather"].rounds}
    found.of["allgather"].unsettled = 3
    return found


def test_each_collective_is_reported_apart(results: Results) -> None:
    text = collectives_report.to_markdown(results)
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        "## allgather, 2 ranks, near",
        "## allgather, 2 ranks, far",
        "## alltoall, 2 ranks",
        "## Targets",
    ]
    target = "2 ranks: at least 1 times as fast as Open MPI"
    assert f"- allgather, near, {target}: met at all 1 sizes" in text
    assert f"- allgather, far, {target}: **NOT MET** at 1 of 1 sizes: 1 KiB (0.50)" in text
    assert f"- alltoall, {target}: **NOT MET** at 1 of 1 sizes: 1 KiB (0.75)" in text
    assert "- alltoall, 2 ranks: at least 1 times as fast as Intel MPI: not measured" in text


def test_json_names_the_collective(results: Results) -> None:
    document = json.loads(collectives_report.to_json(results))
    cells = [(m["collective"], m.get("distance")) for m in document["measurements"]]
    assert sorted(set(cells), key=str) == [
        ("allgather", FAR),
        ("allgather", NEAR),
        ("alltoall", None),
    ]
    assert document["visits_that_do_not_count"] == 3
    missed = [t for t in document["targets"] if t["met"] is False]
    assert [t["collective"] for t in missed] == ["allgather", "alltoall"]


def test_plot_has_a_row_for_each_collective(results: Results, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: no plot")
    results.of["broadcast"] = report.Results("broadcast", OURS, "", [], {}, {})  # not measured
    *_, plot = report.write(results, tmp_path / "collectives", form=collectives_report)
    text = plot.read_text()
    assert "<!-- allgather, 2 ranks, far -->" in text
    assert "<!-- alltoall, 2 ranks -->" in text
    assert "broadcast" not in text


def test_nothing_measured_is_told_apart(results: Results) -> None:
    assert results.rounds
    for one in results.of.values():
        one.rounds = {}
    assert not results.rounds
