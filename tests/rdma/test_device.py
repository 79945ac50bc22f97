"""The device that all tests beside one build upon."""

import resource
import subprocess
import time

import pytest

pytestmark = pytest.mark.guest(cpus=1)


def test_port_is_up(device):
    command = ["ibv_devinfo", "-d", device.name, "-i", str(device.port)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "PORT_ACTIVE" in shown


def test_memory_may_be_locked():
    assert resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] == resource.RLIM_INFINITY


def test_traffic_counts(device):
    """Two processes of one host, by the device's own address."""
    command = ["ibv_rc_pingpong", "-d", device.name, "-i", str(device.port), "-g", "0", "-n", "50"]
    with device.counting() as moved:
        server = subprocess.Popen(command)
        try:
            _until_it_answers([*command, "localhost"])
            assert server.wait(30) == 0
        finally:
            server.kill()
            server.wait()
    assert device.packets_sent(moved) >= 100


def _until_it_answers(client):
    """The server may need a moment until it listens."""
    end = time.monotonic() + 60
    while subprocess.run(client, timeout=60, check=False).returncode:
        assert time.monotonic() < end
        time.sleep(0.2)
