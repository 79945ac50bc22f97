"""``ringcoll probe`` on emulated hosts in two racks: what it writes is what ringcoll reads."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from support.hosts import Network

PORT = 29521
RATE, UPLINK = "200mbit", "20mbit"


@pytest.fixture
def probe(tmp_path):
    """probe(places, *options): standard output of each rank, errors and statuses. The ranks are
    those of a job of torchrun, each on its host."""
    running: list[subprocess.Popen[str]] = []

    def run(places, *options):
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("RINGCOLL_", "HOROVOD_"))}
        for rank in range(len(places)):
            job = {"RANK": rank, "WORLD_SIZE": len(places), "LOCAL_WORLD_SIZE": 1}
            job |= {"MASTER_ADDR": "h1", "MASTER_PORT": PORT, "TMPDIR": tmp_path}
            command = [sys.executable, "-m", "ringcoll", "probe", *map(str, options)]
            running.append(
                subprocess.Popen(
                    places[rank].command(command, "/"),
                    env=clean | {name: str(value) for name, value in job.items()},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        ended = [process.communicate(timeout=100) for process in running]
        out, errors = zip(*ended, strict=True)
        return out, errors, [process.returncode for process in running]

    yield run
    for process in running:
        process.kill()
        process.wait()


def test_racks_are_found_and_ringcoll_reads_the_file(emulate, places, probe, run_ranks, tmp_path):
    network = Network(rate=RATE, racks=(0, 1, 0, 1), uplink=UPLINK)
    hosts = places(emulate(4, [network]), 1, 1, 1, 1)
    file, picture = tmp_path / "topology.json", tmp_path / "matrix.png"
    out, errors, status = probe(hosts, "--output", file, "--plot", picture)
    assert status == [0] * 4 and not any(out[1:]), (out, errors)
    assert "2 leaves were found." in out[0] and f"RINGCOLL_TOPOLOGY={file}" in out[0], out[0]
    wanted = {"h1": "leaf1", "h3": "leaf1", "h2": "leaf2", "h4": "leaf2"}
    assert json.loads(file.read_text()) == wanted
    from matplotlib.image import imread

    height, width, _ = imread(picture).shape
    assert width > height > 300

    def body(world):
        stats = world.stats()
        return stats["ring_order"], stats["levels"]

    env = {"RINGCOLL_TOPOLOGY": str(file)}
    for order, levels in run_ranks(4, body, hosts=hosts, env=env):
        assert order == [0, 2, 1, 3] and levels == ["host", "leaf", "network"]
