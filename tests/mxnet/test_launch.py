"""Jobs of MXNet's launchers: workers, servers and a scheduler as processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import programs
import pytest
import tables_of_ringcoll

import ringcoll

# What a worker says of its job. Its servers and its scheduler run `import mxnet` and nothing else.
REPORT = """
import json, sys
from ringcoll.mxnet import launch
job = launch.job()
holders = job.store.info()["holders"]
job.barrier()
print(json.dumps([job.rank, job.size, len(holders)]))
"""


def first_ended(processes):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for each in processes:
            if each.poll() is not None:
                return each
        time.sleep(0.05)
    raise AssertionError("none has ended")


STAY = "import time; sys.stdout.flush(); time.sleep(600)"


def reports(job):
    return sorted(json.loads(said.splitlines()[-1]) for said in job.finish())


@pytest.mark.parametrize(("workers", "servers"), [(1, 1), (2, 2), (2, 0)])
def test_workers_and_servers_meet_and_end(launched, workers, servers):
    job = launched(["-P", "-c", REPORT], workers, servers, RINGCOLL_MXNET="1")
    assert reports(job) == [[rank, workers, workers + servers] for rank in range(workers)]


@pytest.mark.parametrize("replicas", [0, 1])
def test_a_job_says_how_many_backups_there_are(launched, replicas):
    env = {"RINGCOLL_MXNET_REPLICAS": str(replicas)}
    script = REPORT + 'print(job.store.info()["replicas"]["wanted"])'
    job = launched(["-P", "-c", script], 1, 2, RINGCOLL_MXNET="1", **env)
    assert reports(job) == [replicas]


def test_a_number_of_backups_that_is_none_is_refused(launched):
    env = {"RINGCOLL_MXNET_REPLICAS": "-1"}
    job = launched(["-P", "-c", REPORT], 1, 1, RINGCOLL_MXNET="1", **env)
    text = "RINGCOLL_MXNET_REPLICAS='-1': it is a number of backups, such as 0 or 1"
    assert text in job.workers[0].communicate(timeout=60)[0]
    assert job.workers[0].returncode == 1


def test_a_worker_that_is_killed_ends_the_servers(launched):
    script = REPORT + STAY
    job = launched(["-P", "-c", script], 1, 1, RINGCOLL_MXNET="1")
    assert "[0, 1, 2]\n" in job.workers[0].stdout  # reads until it is there
    job.workers[0].send_signal(signal.SIGKILL)
    assert [each.wait(30) for each in (job.scheduler, *job.servers)] == [0, 0]


def test_a_worker_that_fails_waits_for_nobody(launched):
    script = REPORT + "assert job.rank\n" + STAY
    job = launched(["-P", "-c", script], 2, 1, RINGCOLL_MXNET="1")
    ended = first_ended(job.workers)
    assert ended.returncode == 1 and "AssertionError" in ended.stdout.read()
    assert [each.poll() for each in job.processes if each is not ended] == [None] * 3


def test_without_a_launcher_a_process_is_alone():
    done = subprocess.run(
        [sys.executable, "-P", "-c", REPORT], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [0, 1, 1]


def test_threads_can_be_workers():
    """The tests use them in place of processes."""
    jobs = tables_of_ringcoll.jobs(2)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda job: job.barrier(), jobs))
        assert [(job.rank, job.size) for job in jobs] == [(0, 2), (1, 2)]
        list(pool.map(lambda job: job.store.close(), jobs))


if hasattr(ringcoll.Store, "table"):  # then the programs run over the real thing

    @pytest.mark.parametrize(
        ("kind", "names"),
        [("dist_sync", [*programs.OURS, *programs.SYNC]), ("dist_async", list(programs.ASYNC))],
    )
    @pytest.mark.parametrize("servers", [0, 1, 2])
    def test_programs(launched, kind, names, servers):
        command = ["-P", programs.__file__, kind, *names]
        said = "".join(launched(command, 2, servers, RINGCOLL_MXNET="1").finish())
        passed = [line.split() for line in said.splitlines() if line.startswith("passed")]
        assert passed == [["passed", name, "ringcoll.mxnet.store"] for name in names]
