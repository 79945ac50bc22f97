"""The emulated hosts themselves: what they see of each other, and that nothing of them is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.hosts import HostsError, Network, bits_per_second
from support.stages import has_ended

CI = Path(__file__).resolve().parents[2] / "ci"
OF_A_CREATOR = """
import sys, time
sys.path.insert(0, sys.argv[1])
from support.hosts import Cluster
cluster = Cluster(2)
print(cluster.head.pid, *(host.pid for host in cluster.hosts), flush=True)
if sys.argv[2] == "raise":
    raise KeyError("in the middle")
time.sleep(600)
"""

# A port that nobody listens at is refused by who has the address; else nothing answers.
TRY = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 9), float(sys.argv[2]))
except ConnectionRefusedError:
    print("there")
except OSError as error:
    print(error)
"""


def said_by(host, script):
    done = subprocess.run(
        host.command(["sh", "-c", script]), capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def reaches(host, address, seconds):
    command = [sys.executable, "-c", TRY, address, str(seconds)]
    done = subprocess.run(
        host.command(command), capture_output=True, text=True, timeout=30, check=True
    )
    return done.stdout == "there\n"


def interfaces():
    return {path.name for path in Path("/sys/class/net").iterdir()}


def wait_until_gone(pids, seconds=10):
    end = time.monotonic() + seconds
    while not all(map(has_ended, pids)):
        assert time.monotonic() < end, f"of {pids}, some run"
        time.sleep(0.01)


def test_a_host_has_its_own_name_network_and_processes(emulate):
    before = interfaces(), os.uname().nodename, Path("/etc/hosts").read_text()
    cluster = emulate(2)
    for index, host in enumerate(cluster.hosts, 1):
        assert said_by(host, "hostname; ls /sys/class/net; ls -A /dev/shm") == [
            f"h{index}",
            "eth0",
            "lo",
        ]
        assert said_by(host, "sh -c 'echo $PPID; cat /proc/1/comm'")[1] == "sleep"
        assert f"10.0.0.{index}/24" in said_by(host, "ip -4 address show dev eth0")
    assert said_by(cluster.hosts[0], "getent hosts h2 head") == [
        "10.0.0.2",
        "h2",
        "10.0.0.254",
        "head",
    ]
    assert (interfaces(), os.uname().nodename, Path("/etc/hosts").read_text()) == before


def test_hosts_reach_each_other_and_the_head(emulate):
    networks = [Network(racks=(0, 1, 0), uplink="100mbit"), Network(names=("a", "b", "c"))]
    cluster = emulate(3, networks)
    for host in (*cluster.hosts, cluster.head):
        for peer in cluster.hosts:
            for address in (peer.name, *peer.addresses):
                assert reaches(host, address, 10), f"{host.name}, {address}"
    assert "b" in said_by(cluster.hosts[1], "ls /sys/class/net")


def test_a_network_that_is_not_joined_reaches_nobody(emulate):
    cluster = emulate(2, [Network(), Network(joined=False)])
    first, second = cluster.hosts
    assert reaches(first, second.addresses[0], 10)
    assert not reaches(first, second.addresses[1], 1)
    assert "eth1" in said_by(cluster.hosts[0], "ls /sys/class/net")


def test_links_have_their_rate(emulate):
    cluster = emulate(2, [Network(rate="20mbit", racks=(0, 1), uplink="10mbit")])
    for host in cluster.hosts:
        assert "20Mbit" in said_by(host, "tc qdisc show dev eth0")
    for port, rate in (("n0-h2", "20Mbit"), ("n0-up0", "10Mbit"), ("n0-down1", "10Mbit")):
        assert rate in said_by(cluster.head, f"tc qdisc show dev {port}")


def test_links_may_differ_in_their_rate(emulate):
    cluster = emulate(2, [Network(rates=("20mbit", ""))])
    first, second = (said_by(host, "tc qdisc show dev eth0") for host in cluster.hosts)
    assert "20Mbit" in " ".join(first)
    assert "tbf" not in " ".join(second)


def test_a_program_ends_with_what_started_it(emulate):
    [host] = emulate(1).hosts
    process = subprocess.Popen(
        host.command(["sh", "-c", "sleep 600 & echo started; wait"]), stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"started\n"
    process.kill()
    process.wait()
    end = time.monotonic() + 10
    while "wait" in said_by(host, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"):
        assert time.monotonic() < end, "it runs on"
        time.sleep(0.01)
    process.stdout.close()


def test_close_ends_all_of_it(emulate):
    cluster = emulate(2)
    process = subprocess.Popen(cluster.hosts[1].command(["sleep", "600"]))
    cluster.close()
    assert process.wait(timeout=10) != 0
    wait_until_gone([host.pid for host in (cluster.head, *cluster.hosts)], 0)


@pytest.mark.parametrize("end", ["raise", signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_the_creator_ends(emulate, end):
    emulate(1)  # skips where there can be none
    how = "raise" if end == "raise" else "sleep"
    creator = subprocess.Popen(
        [sys.executable, "-c", OF_A_CREATOR, str(CI), how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert creator.stdout
    pids = [int(word) for word in creator.stdout.readline().split()]
    assert len(pids) == 3
    if end != "raise":
        creator.send_signal(end)
    _, said = creator.communicate(timeout=30)
    assert creator.returncode != 0
    assert ("in the middle" in said) == (end == "raise")
    wait_until_gone(pids)


def test_what_cannot_be_made_says_why(emulate):
    with pytest.raises(HostsError, match=r'(?s)head: ip: .*"not/a/name"'):
        emulate(1, [Network(names=("not/a/name",))])
    with pytest.raises(HostsError, match='"fast" is not a rate'):
        emulate(1, [Network(rate="fast")])


def test_rates_are_in_the_words_of_tc():
    assert [bits_per_second(rate) for rate in ("100mbit", "2.5gbit", "8kbit")] == [1e8, 2.5e9, 8e3]
