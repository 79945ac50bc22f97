"""``ringcoll probe`` on emulated hosts in two racks: what it writes is what ringcoll reads."""

from __future__ import annotations

import json

from support.hosts import Network

RATE, UPLINK = "200mbit", "20mbit"


def test_racks_are_found_and_ringcoll_reads_the_file(
    emulate, places, run_command, run_ranks, tmp_path
):
    network = Network(rate=RATE, racks=(0, 1, 0, 1), uplink=UPLINK)
    hosts = places(emulate(4, [network]), 1, 1, 1, 1)
    file, picture = tmp_path / "topology.json", tmp_path / "matrix.png"
    out, errors, status = run_command(hosts, ["probe", "--output", file, "--plot", picture])
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
