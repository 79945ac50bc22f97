"""One rank dies or stops: the others get the exception that elastic training expects, and why."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

VICTIM = 1
SURVIVORS = (0, 2)
# How long a rank waits for another, unless it knows that it is dead.
DEADLINE_S = 60


def reports(folder, job):
    found = [json.loads(job.wait_for(folder / f"rank{rank}.json")) for rank in SURVIVORS]
    for facts in found:
        assert f"rank {VICTIM}" in facts["message"], facts["message"]
    return found


def start_and_hit(start, folder, number, *arguments, **environment):
    """Starts three ranks and sends one of them a signal while all are at work."""
    job = start(
        "fault.py",
        folder,
        *arguments,
        np=3,
        HOROVOD_CPU_OPERATIONS="RINGCOLL",
        **environment,
    )
    pids = [int(job.wait_for(folder / f"pid{rank}")) for rank in range(3)]
    time.sleep(0.3)
    os.kill(pids[VICTIM], number)
    (folder / "hit").touch()
    return job, pids, time.time()


@pytest.mark.parametrize(
    ("elements", "transport"),
    [
        ("100", "shm"),
        ("32000000", "tcp"),
        pytest.param("100", "tcp", marks=pytest.mark.exhaustive),
        pytest.param("32000000", "shm", marks=pytest.mark.exhaustive),
    ],
)
def test_a_killed_rank_is_named_at_once(start, tmp_path, transport, elements):
    """At once is long before the deadline: other jobs may run beside this one."""
    job, _, hit = start_and_hit(
        start,
        tmp_path,
        signal.SIGKILL,
        elements,
        RINGCOLL_TRANSPORT=transport,
        RINGCOLL_TIMEOUT_S=str(DEADLINE_S),
    )
    for facts in reports(tmp_path, job):
        assert facts["when"] - hit < DEADLINE_S / 4, facts
    job.wait(30)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_killed_rank_is_named_to_one_that_only_hears_of_cycles(start, tmp_path, transport):
    job, _, _ = start_and_hit(
        start, tmp_path, signal.SIGKILL, "100", "rung", RINGCOLL_TRANSPORT=transport
    )
    reports(tmp_path, job)
    job.wait(30)


def test_a_stopped_rank_is_named_at_the_deadline(start, tmp_path):
    job, pids, hit = start_and_hit(
        start, tmp_path, signal.SIGSTOP, "1000000", RINGCOLL_TIMEOUT_S="3"
    )
    try:
        for facts in reports(tmp_path, job):
            assert 2.0 < facts["when"] - hit < DEADLINE_S / 4, facts
    finally:
        os.kill(pids[VICTIM], signal.SIGKILL)
    job.wait(30)


def shared_files(pids):
    """Files in /dev/shm that the processes have mapped or opened."""
    found = set()
    for pid in pids:
        process = Path(f"/proc/{pid}")
        mapped = (
            line.split(maxsplit=5)[-1] for line in (process / "maps").read_text().splitlines()
        )
        opened = (str(link.readlink()) for link in (process / "fd").iterdir() if link.is_symlink())
        found |= {path for path in (*mapped, *opened) if path.startswith("/dev/shm/")}
    return found


def test_nothing_is_left_behind(start, tmp_path):
    """No file: shared memory has no name (csrc/shm/shared_memory.h). And no survivor that hangs:
    Horovod ends there before the launcher kills it."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    job, pids, _ = start_and_hit(start, tmp_path, signal.SIGSTOP, "1000000", TMPDIR=str(temporary))
    try:
        shared = shared_files(pids)
    finally:
        os.kill(pids[VICTIM], signal.SIGKILL)
    reports(tmp_path, job)
    for rank in SURVIVORS:
        job.wait_for(tmp_path / f"ended{rank}")
    job.wait(30)
    assert [path for path in shared if Path(path).exists()] == []
    assert [path.name for path in temporary.rglob("*") if not path.is_dir()] == []
