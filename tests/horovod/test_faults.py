"""One rank dies or stops: the others get the exception that elastic training expects, and why."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

VICTIM = 1
SURVIVORS = (0, 2)


def reports(folder, job):
    found = [json.loads(job.wait_for(folder / f"rank{rank}.json")) for rank in SURVIVORS]
    for facts in found:
        assert f"rank {VICTIM}" in facts["message"], facts["message"]
    return found


def start_and_hit(start, folder, number, elements, **environment):
    """Starts three ranks and sends one of them a signal while all are at work."""
    job = start(
        "fault.py",
        folder,
        elements,
        np=3,
        HOROVOD_CPU_OPERATIONS="RINGCOLL",
        **environment,
    )
    pids = [int(job.wait_for(folder / f"pid{rank}")) for rank in range(3)]
    time.sleep(0.3)
    os.kill(pids[VICTIM], number)
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
def test_a_killed_rank_is_named_within_a_second(start, tmp_path, transport, elements):
    job, _, hit = start_and_hit(
        start, tmp_path, signal.SIGKILL, elements, RINGCOLL_TRANSPORT=transport
    )
    for facts in reports(tmp_path, job):
        assert facts["when"] - hit < 1.0, facts
    job.wait(30)


def test_a_stopped_rank_is_named_at_the_deadline(start, tmp_path):
    job, pids, hit = start_and_hit(
        start, tmp_path, signal.SIGSTOP, "1000000", RINGCOLL_TIMEOUT_S="3"
    )
    try:
        for facts in reports(tmp_path, job):
            assert 2.0 < facts["when"] - hit < 6.0, facts
    finally:
        os.kill(pids[VICTIM], signal.SIGKILL)
    job.wait(30)


def test_nothing_is_left_behind(start, tmp_path):
    before = set(Path("/dev/shm").iterdir())
    job, _, _ = start_and_hit(start, tmp_path, signal.SIGKILL, "1000000")
    reports(tmp_path, job)
    job.wait(30)
    assert not [
        path for path in set(Path("/dev/shm").iterdir()) - before if "ringcoll" in path.name
    ]
