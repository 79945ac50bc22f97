"""Which interfaces doctor and probe look at: those of the library, by the cases of
csrc/net/interfaces_test.cc and of KnowsWhatLaunchersSayOfInterfaces in csrc/base/base_test.cc."""

from __future__ import annotations

import pytest

import ringcoll
from ringcoll import doctor
from ringcoll.interfaces import Interface, list_interfaces, select_interfaces, usable_interfaces


def interface(name, address, up=True, speed=0):
    return Interface(name, address, 1500, speed, up, name == "lo")


HOST = [
    interface("lo", "127.0.0.1"),
    interface("docker0", "172.17.0.1"),
    interface("eth0", "10.0.0.5", up=False),
    interface("eth1", "10.0.1.5"),
    interface("eth10", "10.0.10.5"),
    interface("ib0", "10.1.2.5"),
    interface("ib0", "fd00::5"),
]


@pytest.fixture(autouse=True)
def _nothing_is_set(monkeypatch):
    for name in ("NCCL_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE", "GLOO_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("RINGCOLL_INTERFACE", raising=False)


def text(found):
    return ", ".join(f"{each.name} {each.address}" for each in found)


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        ("", "eth1 10.0.1.5, eth10 10.0.10.5, ib0 10.1.2.5, ib0 fd00::5"),
        ("eth", "eth1 10.0.1.5, eth10 10.0.10.5"),
        ("eth1", "eth1 10.0.1.5, eth10 10.0.10.5"),
        ("=eth1", "eth1 10.0.1.5"),
        ("=eth10,docker0", "docker0 172.17.0.1, eth10 10.0.10.5"),
        ("ib,lo", "lo 127.0.0.1, ib0 10.1.2.5, ib0 fd00::5"),
        ("10.1.0.0/16", "ib0 10.1.2.5"),
        ("10.0.0.0/15", "eth1 10.0.1.5, eth10 10.0.10.5, ib0 10.1.2.5"),
        ("fd00::/64", "ib0 fd00::5"),
        ("10.1.2.5/32,lo", "lo 127.0.0.1, ib0 10.1.2.5"),
        ("eth0", "eth0 10.0.0.5"),  # down, and there is no other
        ("^docker,ib", "eth1 10.0.1.5, eth10 10.0.10.5"),
        ("^=eth1,docker0,ib0", "eth10 10.0.10.5"),
        ("^10.0.0.0/8,docker", "ib0 fd00::5"),
        ("^eth,ib,docker", "lo 127.0.0.1"),
        ("ib9", ""),
        ("=eth", ""),
        ("^eth,ib,docker,lo", ""),
        ("10.9.0.0/16", ""),
        ("10.0.0.0/33", ""),
        ("10.0.0.0/255.0.0.0", ""),
        ("10.0.0/24", ""),
        ("fd00::/129", ""),
        (",", ""),
    ],
)
def test_what_is_wanted(wanted, chosen):
    assert text(select_interfaces(wanted, HOST)) == chosen


def test_loopback_where_there_is_no_other():
    assert text(select_interfaces("", HOST[:3])) == "lo 127.0.0.1"
    assert select_interfaces("", []) == []


@pytest.mark.parametrize(
    ("told", "chosen"),
    [
        ({}, "eth1 10.0.1.5, eth10 10.0.10.5, ib0 10.1.2.5, ib0 fd00::5"),
        ({"GLOO_SOCKET_IFNAME": "ib0"}, "ib0 10.1.2.5, ib0 fd00::5"),
        ({"GLOO_SOCKET_IFNAME": "ib"}, "eth1 10.0.1.5, eth10 10.0.10.5, ib0 10.1.2.5, ib0 fd00::5"),
        ({"NCCL_SOCKET_IFNAME": "^docker,eth"}, "ib0 10.1.2.5, ib0 fd00::5"),
        ({"NCCL_SOCKET_IFNAME": "eth"}, "eth1 10.0.1.5, eth10 10.0.10.5"),
        ({"HOROVOD_GLOO_IFACE": "eth1", "GLOO_SOCKET_IFNAME": "ib0"}, "eth1 10.0.1.5"),
        (
            {"HOROVOD_GLOO_IFACE": "eth1", "NCCL_SOCKET_IFNAME": "eth10,eth1"},
            "eth1 10.0.1.5, eth10 10.0.10.5",
        ),
        ({"HOROVOD_GLOO_IFACE": "eth1", "NCCL_SOCKET_IFNAME": "eth10"}, "eth1 10.0.1.5"),
        ({"RINGCOLL_INTERFACE": "=ib0", "HOROVOD_GLOO_IFACE": "eth1"}, "ib0 10.1.2.5, ib0 fd00::5"),
        ({"RINGCOLL_INTERFACE": "=ib9", "HOROVOD_GLOO_IFACE": "eth1"}, ""),
    ],
)
def test_what_launchers_say(monkeypatch, told, chosen):
    monkeypatch.setattr("ringcoll.interfaces.list_interfaces", lambda: HOST)
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert text(usable_interfaces()) == chosen


def test_the_fastest_comes_first(monkeypatch):
    there = [interface("eth0", "10.0.0.1", speed=1000), interface("ib0", "10.1.0.1", speed=100000)]
    monkeypatch.setattr("ringcoll.interfaces.list_interfaces", lambda: there)
    assert text(usable_interfaces()) == "ib0 10.1.0.1, eth0 10.0.0.1"


def test_doctor_lists_all_addresses(monkeypatch):
    monkeypatch.setattr("ringcoll.doctor.list_interfaces", lambda: HOST)
    monkeypatch.setattr("socket.if_nameindex", lambda: [(1, "ib0"), (2, "eth9")])
    found = {each.part: each for each in doctor._interfaces()}
    assert found["interface ib0"].status == "ok" and found["interface eth9"].status == "note"
    assert found["interface ib0"].detail.startswith("10.1.2.5, fd00::5, ")
    assert found["interface eth9"].detail.startswith("no address, ")


def test_the_library_sees_the_same(run_ranks):
    def body(rank, size, store):
        try:
            ringcoll.init(rank, size, store)
        except ringcoll.Error as error:
            return str(error)

    there = list_interfaces()
    assert "lo" in [each.name for each in there if each.loopback and each.up]
    names = [f"{i.name} ({i.address}{'' if i.up else ', down'})" for i in there]
    env = {"RINGCOLL_INTERFACE": "none9", "RINGCOLL_TRANSPORT": "tcp"}
    for said in run_ranks(2, body, connect=False, env=env):
        assert f"there are: {', '.join(names)}. Name" in said, said
