"""Processes of one machine that cannot map one another's memory are on several hosts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ringcoll

RANK = """
import json, sys, numpy, ringcoll
rank, size, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
world = ringcoll.init(rank, size, store)
total = float(world.allreduce(numpy.ones(100_000))[-1])
stats = world.stats()
ringcoll.shutdown()
print(json.dumps([total, stats["hosts"], stats["levels"],
                  [peer["transport"] for peer in stats["peers"]]]))
"""
HOST = ["--pid", "--fork", "--kill-child", "--mount-proc"]


def unshare() -> list[str]:
    """The command that makes a PID namespace with its own /proc; skips where that is forbidden."""
    command = ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), *HOST]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("PID namespaces are not allowed here")
    return command


def ranks_on(hosts: list[list[int]], folder: Path, **env: str) -> list[subprocess.Popen[str]]:
    """Ranks by host, each host a PID namespace of this machine with all of its ranks."""
    size = sum(len(ranks) for ranks in hosts)
    script = folder / "rank.py"
    script.write_text(RANK)
    run = f'"$0" {script} $rank {size} file://{folder} > {folder}/said.$rank'
    settings = {"RINGCOLL_INTERFACE": "lo", "RINGCOLL_TIMEOUT_S": "40"}
    environment = {**os.environ, **settings, **env}
    processes = []
    for ranks in hosts:
        loop = f"for rank in {' '.join(map(str, ranks))}; do {run} & done; wait"
        command = [*unshare(), "sh", "-c", loop, sys.executable]
        processes.append(
            subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        )
    return processes


def test_pid_namespaces_of_one_machine_are_hosts(tmp_path):
    processes = ranks_on([[0, 2], [1, 3]], tmp_path)
    logs = [process.communicate(timeout=120)[1] for process in processes]
    for rank in range(4):
        said = (tmp_path / f"said.{rank}").read_text()
        assert said, logs
        total, hosts, levels, transports = json.loads(said)
        assert (total, hosts, levels) == (4.0, 2, ["host", "network"])
        near = (rank + 2) % 4
        assert transports[near] == "shm"
        assert all(transports[peer] == "tcp" for peer in range(4) if peer not in (rank, near))
    assert "4 ranks on 2 hosts; shm within hosts, tcp between hosts; " in logs[0]
    assert "; ring 0-2-1-3 by host names; " in logs[0]


def test_places_come_from_the_file_of_rank_0(run_ranks, tmp_path):
    """Also those of a group whose first rank has no file, and the log says why."""
    file = tmp_path / "topology.conf"
    file.write_text(
        "SwitchName=top Switches=l[1-2]\nSwitchName=l1 Nodes=h[1,3]\nSwitchName=l2 Nodes=h2\n"
    )

    def body(rank, size, store):
        os.environ["RINGCOLL_HOSTID"] = f"h{rank + 1}"
        if rank == 0:
            os.environ["RINGCOLL_TOPOLOGY"] = str(file)
        world = ringcoll.init(rank, size, store)
        part = world.split([1, 2] if rank else [0])
        found = [
            (stats["levels"], stats["ring_order"], [peer["groups"] for peer in stats["peers"]])
            for stats in (world.stats(), part.stats())
        ]
        part.close()
        return *found, world.stats()["topology"], Path(f"output.{rank}").read_text()

    ranks = run_ranks(3, body, connect=False, env={"RINGCOLL_LOG": "debug"})
    for world, part, source, _ in ranks:
        assert world == (["host", "leaf", "spine"], [0, 2, 1], [[0, 0, 0], [1, 1, 0], [2, 0, 0]])
        assert source == f"RINGCOLL_TOPOLOGY={file}"
        assert part[0] == (["host"] if len(part[1]) == 1 else ["host", "spine"])
    assert f"ring 0-2-1 by RINGCOLL_TOPOLOGY={file}" in ranks[0][3]
    assert "host h3 (1 rank, first 2): at top.l1, by line 2" in ranks[0][3]
