"""horovodrun over emulated hosts: by ssh, as on a cluster, and each host's ranks in its own."""

import json
import os
import sys
from pathlib import Path

import pytest


@pytest.fixture
def run_on_hosts(emulate, tmp_path, launch):
    """run_on_hosts(script, *arguments, ranks=…, **environment): what a job of so many ranks on each
    of two hosts printed. It has to succeed."""
    cluster = emulate(2)
    cluster.write_ssh(tmp_path)
    path = f"PATH={tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"

    def run(script, *arguments, ranks, **environment):
        horovodrun = ["horovodrun", "--gloo", "--disable-cache", "-np", str(2 * ranks)]
        horovodrun += ["-H", f"h1:{ranks},h2:{ranks}"]
        launcher = cluster.head.command(["env", path, *horovodrun], tmp_path)
        job = launch(tmp_path, script, *arguments, launcher=launcher, **environment)
        try:
            done = job.wait(200)
        finally:
            job.end()
        assert done.status == 0, done.output
        return done.output

    return run


@pytest.fixture
def train(run_on_hosts, tmp_path):
    """train(operations): what each of 2 x 2 ranks wrote, and what the job printed."""

    def run(operations):
        output = run_on_hosts(
            "exact_training.py", tmp_path, ranks=2, HOROVOD_CPU_OPERATIONS=operations
        )
        files = [tmp_path / f"rank{rank}.json" for rank in range(4)]
        found = [json.loads(file.read_text()) for file in files]
        for file in files:
            file.unlink()
        return found, output

    return run


def test_two_hosts_of_two_ranks_train_the_same_under_ringcoll_and_gloo(train):
    ringcoll, said = train("RINGCOLL")
    gloo, _ = train("GLOO")
    assert [facts["ringcoll"] for facts in ringcoll + gloo] == [True] * 4 + [False] * 4
    assert all(facts["exact"] for facts in ringcoll + gloo)
    assert all(facts["exchanged"] == [True] * 4 for facts in ringcoll + gloo)
    assert len({facts["weights"] for facts in ringcoll + gloo}) == 1
    places = [[0, 2, 0, 2], [1, 2, 0, 2], [0, 2, 1, 2], [1, 2, 1, 2]]
    assert [facts["local"] for facts in ringcoll] == places
    [line] = [line for line in said.splitlines() if "[ringcoll] 0." in line]
    assert "shm" in line and "tcp" in line


def test_probe_looks_at_every_pair(run_on_hosts, tmp_path):
    file = tmp_path / "topology.json"
    output = run_on_hosts("command.py", "probe", "--output", file, ranks=1)
    assert "2 hosts: there is nothing to find" in output
    assert list(json.loads(file.read_text())) == ["h1", "h2"]
