"""Two hosts, each with a kernel and a device of its own, reach each other by RDMA."""

import subprocess
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.guest(guests=2)


def test_they_are_two(hosts):
    """By what ringcoll tells hosts apart."""
    identity = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    theirs = hosts.exchange(identity)
    assert theirs
    assert theirs != identity


def test_pingpong(device, hosts):
    gid = device.gid_index(hosts.addresses[hosts.index])
    command = ["ibv_rc_pingpong", "-d", device.name, "-i", str(device.port), "-g", str(gid)]
    command += ["-n", "50"]
    with device.counting() as moved:
        if hosts.index == 0:
            subprocess.run(command, timeout=60, check=True)
        else:
            _until_it_answers([*command, hosts.peer])
    assert device.packets_sent(moved) >= 100
    hosts.exchange()


def _until_it_answers(client):
    """The server may need a moment until it listens."""
    end = time.monotonic() + 60
    while subprocess.run(client, timeout=60, check=False).returncode:
        assert time.monotonic() < end
        time.sleep(0.2)
