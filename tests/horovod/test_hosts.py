"""horovodrun over emulated hosts: by ssh, as on a cluster, and each host's ranks in its own."""

import json
import os
import sys
from pathlib import Path

import pytest


@pytest.fixture
def train(emulate, tmp_path, launch):
    """train(operations): what each of 2 x 2 ranks wrote, and what the job printed."""
    cluster = emulate(2)
    cluster.write_ssh(tmp_path)
    path = f"PATH={tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"

    def run(operations):
        horovodrun = ["horovodrun", "--gloo", "--disable-cache", "-np", "4"]
        horovodrun += ["-H", "h1:2,h2:2"]
        job = launch(
            tmp_path,
            "exact_training.py",
            tmp_path,
            launcher=cluster.head.command(["env", path, *horovodrun], tmp_path),
            HOROVOD_CPU_OPERATIONS=operations,
        )
        try:
            done = job.wait(200)
        finally:
            job.end()
        assert done.status == 0, done.output
        files = [tmp_path / f"rank{rank}.json" for rank in range(4)]
        found = [json.loads(file.read_text()) for file in files]
        for file in files:
            file.unlink()
        return found, done.output

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
