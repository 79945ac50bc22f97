"""A job's life, with the pace-maker as the peer: it needs a C compiler and no library."""

import os
import shutil
import time
from pathlib import Path

import pytest
from harness import build, figures, jobs, rounds
from harness.jobs import Job, JobError, Spec
from harness.report import Results
from support.stages import has_ended

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler: cc is not on PATH")


@pytest.fixture(scope="module")
def pacemaker(tmp_path_factory: pytest.TempPathFactory) -> Spec:
    directory = tmp_path_factory.mktemp("build")
    program = build.compile_c("cc", [build.PERF / "pacemaker.c"], directory / "pacemaker", [])
    return Spec("pace-maker", [str(program), "{socket}", "{ranks}", "4096", "3"])


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.fixture(autouse=True)
def short_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "ANSWER_TIMEOUT_S", 20.0)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("size", [4, 4096, 4100, 100_000])
def test_sums_are_verified_at_every_size(
    pacemaker: Spec, tmp_path: Path, ranks: int, size: int
) -> None:
    with Job(pacemaker, ranks, tmp_path) as job:
        answers = job.ask(f"run {size} 3 2", "times")
    assert [len(answer) for answer in answers] == [3] * ranks
    assert all(float(seconds) > 0 for answer in answers for seconds in answer)


def test_memory_tells_peak_and_buffers(pacemaker: Spec, tmp_path: Path) -> None:
    with Job(pacemaker, 2, tmp_path) as job:
        job.ask("run 8388608 1 1", "times")
        for peak, buffers in job.ask("memory", "memory"):
            assert int(buffers) == 2 * 8192
            assert int(peak) > int(buffers)


def test_idle_job_takes_no_processor(pacemaker: Spec, tmp_path: Path) -> None:
    with Job(pacemaker, 2, tmp_path) as job:
        job.ask("run 4 1 1", "times")
        before = job.processor_seconds()
        time.sleep(0.3)
        assert job.processor_seconds() - before <= 0.02


def test_close_leaves_nothing_running(pacemaker: Spec, tmp_path: Path) -> None:
    job = Job(pacemaker, 2, tmp_path)
    pids = [rank.pid for rank in job._ranks]
    job.close()
    assert all(has_ended(pid) for pid in pids)


def test_paused_job_answers_and_ends(pacemaker: Spec, tmp_path: Path) -> None:
    spec = Spec("paused", pacemaker.command, pause_when_idle=True)
    with Job(spec, 2, tmp_path) as job:
        pids = [rank.pid for rank in job._ranks]
        deadline = time.monotonic() + 5
        while [state_of(pid) for pid in pids] != ["T", "T"] and time.monotonic() < deadline:
            time.sleep(0.01)
        assert [state_of(pid) for pid in pids] == ["T", "T"]
        assert len(job.ask("run 4 1 1", "times")) == 2
    assert all(has_ended(pid) for pid in pids)


def test_program_that_ends_at_once_is_reported_with_its_words(tmp_path: Path) -> None:
    said = "'File \"/usr/lib/some-1.0/peer.py\", line 7: no such device'"
    spec = Spec("broken", ["/bin/sh", "-c", f"echo {said}; exit 3", "{socket}"])
    words = r'(?s)broken: start: ended.*\n    File "peer.py", line 7: no such device'
    with pytest.raises(JobError, match=words):
        Job(spec, 2, tmp_path)


def test_refused_command_is_reported(pacemaker: Spec, tmp_path: Path) -> None:
    with Job(pacemaker, 1, tmp_path) as job, pytest.raises(JobError, match='size is "x"'):
        job.ask("run x 1 1", "times")


def test_rounds_go_on_without_a_job_that_died(pacemaker: Spec, tmp_path: Path) -> None:
    results = Results("t", "pace-maker", "", [], {"cpu": ""}, {"pace-maker": "", "other": ""})
    specs = [pacemaker, Spec("other", pacemaker.command)]
    running = rounds.start_jobs(specs, 2, tmp_path, results)
    os.kill(running["other"]._ranks[0].pid, 9)
    try:
        rounds.run_rounds(running, 2, rounds.Plan([4, 4096], rounds=2, budget_s=0.002), results)
    finally:
        rounds.close_jobs(running)
    assert list(running) == ["pace-maker"]
    assert figures.middle(results.rounds[2, "pace-maker", 4096])
    assert len(results.failures) == 1
    assert "other" in results.failures[0]
