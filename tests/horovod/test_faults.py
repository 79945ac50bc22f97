"""One rank dies or stops: the others get the exception that elastic training expects, and why."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

VICTIM = 1
SURVIVORS = (0, 2)


def wait_for(path, job, seconds=60):
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"no {path.name} in {seconds} s:\n{job.output()}"
        assert job.process.poll() is None, f"the job has ended:\n{job.output()}"
        time.sleep(0.02)
    return path.read_text()


def reports(folder, job):
    found = [json.loads(wait_for(folder / f"rank{rank}.json", job)) for rank in SURVIVORS]
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
    pids = [int(wait_for(folder / f"pid{rank}", job)) for rank in range(3)]
    time.sleep(0.3)
    os.kill(pids[VICTIM], number)
    return job, pids, time.time()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("elements", ["100", "32000000"], ids=["small", "large"])
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


def test_elastic_training_goes_on_without_the_dead(start, tmp_path):
    hosts = tmp_path / "hosts.sh"
    hosts.write_text("#!/bin/sh\necho localhost:2\necho 127.0.0.1:1\n")
    hosts.chmod(0o755)
    job = start(
        "elastic.py",
        tmp_path,
        np=3,
        options=["--min-np", "2", "--host-discovery-script", str(hosts), "--elastic-timeout", "60"],
        launcher="horovodrun elastic",
        HOROVOD_CPU_OPERATIONS="RINGCOLL",
    )
    victim = int(wait_for(tmp_path / "victim", job))
    os.kill(victim, signal.SIGKILL)
    found = [json.loads(wait_for(tmp_path / f"rank{rank}.json", job, 90)) for rank in (0, 1)]
    job.wait(60)
    for facts in found:
        assert facts["sizes"] == [3, 2]
        assert facts["ringcoll"]
        assert facts["resets"] == 1
