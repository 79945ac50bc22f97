"""Two hosts, each with a kernel and a device of its own, reach each other by RDMA."""

import subprocess
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.guest(guests=2)


def test_pingpong(device, hosts):
    gid = device.gid_index(hosts.addresses[hosts.index])
    command = ["ibv_rc_pingpong", "-d", device.name, "-i", str(device.port), "-g", str(gid)]
    hosts.meet()
    if hosts.index == 0:
        with device.counting() as moved:
            subprocess.run([*command, "-n", "50"], timeout=60, check=True)
        assert max(moved.get(name, 0) for name in ("sent_pkts", "port_xmit_packets")) >= 100
        return
    end = time.monotonic() + 60
    while subprocess.run([*command, "-n", "50", hosts.peer], timeout=60, check=False).returncode:
        assert time.monotonic() < end
        time.sleep(0.2)


def test_they_are_two(hosts):
    """What topology tells hosts apart by."""
    identity = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert identity
    hosts.meet()
