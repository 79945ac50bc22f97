"""Where agents say that they are: the host, and the switches above it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ringcoll

SAY = "import ringcoll; agent = ringcoll.serve('w', 'key'); print(agent.host, agent.leaf)"


@pytest.fixture
def topology(tmp_path: Path) -> Path:
    """Two hosts of one leaf, and one of another."""
    file = tmp_path / "topology.json"
    file.write_text(json.dumps({"h0": "spine.a", "h1": "spine.a", "h2": "spine.b"}))
    return file


def say(**more: object) -> subprocess.CompletedProcess[str]:
    """What the agent of a new process says."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("RINGCOLL_", "SLURM_"))}
    return subprocess.run(
        [sys.executable, "-P", "-c", SAY],
        env=clean | {name: str(value) for name, value in more.items()},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_processes_of_a_machine_are_of_one_host_and_of_no_leaf() -> None:
    one, other = say().stdout, say().stdout
    assert one == other
    assert len(one.split()) == 1  # a host, and no leaf


def test_named_hosts_are_hosts_of_their_own_below_their_switches(topology: Path) -> None:
    found = [say(RINGCOLL_HOSTID=f"h{i}", RINGCOLL_TOPOLOGY=topology) for i in range(3)]
    hosts, leaves = zip(*(each.stdout.split() for each in found), strict=True)
    assert len(set(hosts)) == 3
    assert leaves == ("spine.a", "spine.a", "spine.b")


def test_a_host_that_the_file_does_not_name_is_an_error(topology: Path) -> None:
    failed = say(RINGCOLL_HOSTID="h7", RINGCOLL_TOPOLOGY=topology)
    assert "InvalidArgument" in failed.stderr
    assert "does not name host h7" in failed.stderr


def test_the_agent_of_a_rank_is_where_the_communicator_says(run_ranks, topology: Path) -> None:
    def body(rank: int, size: int, store: str) -> tuple[str, str]:
        os.environ["RINGCOLL_HOSTID"] = f"h{rank}"
        if rank == 0:  # which reads it for all
            os.environ["RINGCOLL_TOPOLOGY"] = str(topology)
        with ringcoll.init(rank, size, store) as world:
            return world.agent.host, world.agent.leaf

    found = run_ranks(3, body, connect=False)
    assert len({host for host, _ in found}) == 3
    assert [leaf for _, leaf in found] == ["spine.a", "spine.a", "spine.b"]
