"""The device that all tests in a guest build upon."""

import resource
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.guest(cpus=1)


def test_port_is_up(device):
    assert "ACTIVE" in (device.folder / "state").read_text()
    shown = subprocess.run(
        ["ibv_devinfo", "-d", device.name], capture_output=True, text=True, check=True
    ).stdout
    assert "active_mtu" in shown


def test_memory_may_be_locked():
    assert resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] == resource.RLIM_INFINITY


def test_traffic_counts(device):
    """Two processes of this host, by the device's own address."""
    interface = Path("/sys/class/infiniband") / device.name / "device" / "net"
    assert interface is not None
    command = ["ibv_rc_pingpong", "-d", device.name, "-i", str(device.port), "-n", "50", "-g", "0"]
    with device.counting() as moved:
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            _until_it_answers([*command, "localhost"])
            assert server.wait(30) == 0
        finally:
            server.kill()
    sent = {name: count for name, count in moved.items() if name in _SENT}
    assert sent, f"no counter of packets among {sorted(moved)}"
    assert max(sent.values()) >= 100


_SENT = ("sent_pkts", "port_xmit_packets")


def _until_it_answers(client: list[str]) -> None:
    """The server may need a moment until it listens."""
    for _ in range(100):
        if subprocess.run(client, capture_output=True, timeout=60, check=False).returncode == 0:
            return
    raise AssertionError("no client succeeded")
