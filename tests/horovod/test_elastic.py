"""Elastic training: ranks that go and come, and what is left of those before a reset."""

import json
import os
import signal

import pytest

ELASTIC = "horovodrun elastic"


def hosts_script(folder, *lines):
    """A host discovery script that prints a file, which can be changed; returns both."""
    listed = folder / "hosts"
    listed.write_text("\n".join(lines) + "\n")
    script = folder / "hosts.sh"
    script.write_text(f"#!/bin/sh\ncat {listed}\n")
    script.chmod(0o755)
    return listed, script


@pytest.fixture
def elastic(start, tmp_path):
    """elastic(job, *arguments, hosts=, least=, most=, np=) starts a job over RINGCOLL on the hosts
    that a script names."""

    def run(job, *arguments, hosts, least, most, np):
        return start(
            job,
            tmp_path,
            *arguments,
            np=np,
            options=[
                *("--min-np", str(least), "--max-np", str(most), "--elastic-timeout", "60"),
                *("--host-discovery-script", str(hosts)),
                *("--network-interfaces", "lo"),  # else the launcher waits for a second host
            ],
            launcher=ELASTIC,
            HOROVOD_CPU_OPERATIONS="RINGCOLL",
        )

    return run


def reports(job, folder, ranks, seconds=90):
    return [json.loads(job.wait_for(folder / f"rank{rank}.json", seconds)) for rank in ranks]


@pytest.mark.parametrize("how", ["killed", "raises"])
def test_training_goes_on_without_the_lost(elastic, tmp_path, how):
    _, script = hosts_script(tmp_path, "localhost:2", "127.0.0.1:1")
    arguments = [how] if how == "raises" else []
    job = elastic("elastic.py", *arguments, hosts=script, least=2, most=3, np=3)
    victim = int(job.wait_for(tmp_path / "victim"))
    if how == "killed":
        os.kill(victim, signal.SIGKILL)
    found = reports(job, tmp_path, (0, 1))
    job.wait(60)
    for facts in found:
        assert facts["sizes"] == [3, 2]
        assert facts["ringcoll"]
        assert facts["resets"] == 1


def test_hosts_come_and_go(elastic, tmp_path):
    listed, script = hosts_script(tmp_path, "localhost:2")
    job = elastic("elastic_hosts.py", hosts=script, least=2, most=3, np=2)
    job.wait_for(tmp_path / "size2")
    listed.write_text("localhost:2\n127.0.0.1:1\n")
    before = int(job.wait_for(tmp_path / "size3"))
    listed.write_text("localhost:2\n")
    found = reports(job, tmp_path, (0, 1))
    done = job.wait(60)
    assert done.status == 0, done.output
    for facts in found:
        assert facts["sizes"] == [2, 3, 2]
        assert facts["step"] >= before + 20, "steps were lost"
        assert (facts["host"], facts["size"]) == ("localhost", 2)


@pytest.mark.parametrize(
    ("framework", "resets"),
    [
        ("torch", 6),
        ("tensorflow", 3),
        pytest.param("torch", 20, marks=pytest.mark.exhaustive),
    ],
)
def test_resets_leave_nothing_behind(elastic, tmp_path, framework, resets):
    pytest.importorskip(framework, reason=f"{framework} is not installed")
    _, script = hosts_script(tmp_path, "localhost:2")
    job = elastic("elastic_resets.py", framework, str(resets), hosts=script, least=2, most=2, np=2)
    found = reports(job, tmp_path, (0, 1), 240)
    done = job.wait(60)
    assert done.status == 0, done.output
    for facts in found:
        assert facts["ringcoll"]
        assert facts["step"] == resets, "what was committed was lost, or was done again"
        seen = facts["seen"]
        assert len(seen) == resets
        bells = [once.pop("bells") for once in seen]
        assert max(bells) <= 1, f"the other rank has one bell, and so much is held: {bells}"
        # After the first reset Horovod has a listener that it keeps.
        assert seen[-1] == seen[1], seen
        assert seen[-1].get("shm", 0) == 0
