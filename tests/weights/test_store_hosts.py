"""Stores on hosts of which one is cut off, in the middle of commits and reads, and comes back.

The hosts are network namespaces (ci/support/hosts.py), the members are processes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from members import SIZE, Failed, Member, await_copies, door_of, sums_of
from support.hosts import Cluster, Network

RATE = "200mbit"  # a commit of four tensors takes some tenths of a second


class Wire:
    """The link of one host, which can be cut: "unplugged", nothing passes; "down", and the host
    knows it; "deaf", the host receives nothing, and what it sends arrives."""

    def __init__(self, cluster: Cluster, host: int, how: str) -> None:
        self._head, self._host, self._how = cluster.head, cluster.hosts[host], how
        self._port = f"n0-h{host + 1}"

    def cut(self) -> None:
        self._set("nomaster", "down", "blackhole")

    def mend(self) -> None:
        self._set("master eth0", "up", f"tbf rate {RATE} burst 256kb latency 20ms")

    def _set(self, bridge: str, interface: str, queue: str) -> None:
        if self._how == "unplugged":
            self._head.configure("ip", [f"link set dev {self._port} {bridge}"])
        elif self._how == "down":
            self._host.configure("ip", [f"link set dev eth0 {interface}"])
        else:
            self._head.configure("tc", [f"qdisc replace dev {self._port} root {queue}"])


def hide(cluster: Cluster, one: int, other: int) -> None:
    """Cuts two hosts off from each other, and from nobody else: each sends to an interface that
    there is not."""
    for host, peer in ((one, other), (other, one)):
        address = cluster.hosts[peer].addresses[0]
        nobody = f"neigh replace {address} lladdr 02:00:00:00:00:99 dev eth0 nud permanent"
        cluster.hosts[host].configure("ip", [nobody])


def find(cluster: Cluster, one: int, other: int) -> None:
    for host, peer in ((one, other), (other, one)):
        address = cluster.hosts[peer].addresses[0]
        cluster.hosts[host].configure("ip", [f"neigh del {address} dev eth0"])


class History:
    """What members have committed and read. Each commit puts all names, so a version is what one
    commit has put: a version of two commits, or with two contents, fails the test."""

    def __init__(self) -> None:
        self._put: list[dict[str, int]] = []
        self._versions: dict[int, dict[str, int]] = {}

    def put(self, member: Member) -> dict[str, int]:
        """Has a member put values that nobody else puts. Returns their sums."""
        first = 10 * len(self._put)
        seeds = {f"layer.{i}": first + i for i in range(4)}
        member.ask("put", tensors=seeds, size=SIZE)
        self._put.append(sums_of(seeds))
        return self._put[-1]

    def note(self, number: int, sums: dict[str, int]) -> None:
        assert sums in self._put
        assert self._versions.setdefault(number, sums) == sums, f"version {number} is two"

    def commit(self, member: Member) -> int:
        sums = self.put(member)
        number = int(member.ask("commit"))
        self.note(number, sums)
        return number

    def read(self, member: Member) -> tuple[int, float]:
        """The number of the version that a member was asked to read, and the seconds it took."""
        number, sums, seconds = member.answer()
        self.note(number, sums)
        return number, seconds


@pytest.fixture
def network(emulate: Callable[..., Cluster]) -> Cluster:
    """Three hosts, which the head reaches too."""
    return emulate(3, [Network(rate=RATE)])


def outcome(member: Member) -> Any:
    """What a commit has returned, or how it failed."""
    try:
        return member.answer()
    except Failed as error:
        assert error.kind in ("Timeout", "PeerLost")
        return str(error)


@pytest.mark.parametrize(
    ("who", "how"), [("leader", "unplugged"), ("leader", "deaf"), ("replica", "down")]
)
def test_a_host_that_is_cut_off_and_comes_back(
    network: Cluster, start_member: Callable[..., Member], who: str, how: str
) -> None:
    first = start_member("found", "w", network.hosts[0])
    holders = [first, *(start_member("join", first.address, host) for host in network.hosts[1:])]
    number = ["leader", "replica"].index(who)
    victim, other = holders[number], holders[2]
    history, wire = History(), Wire(network, number, how)
    outside = start_member("visit", first.address, network.head)
    inside = start_member("visit", door_of(victim), network.hosts[number])
    everybody = [*holders, outside, inside]
    assert history.commit(first) == 1
    await_copies(first, 2, holders=3)

    # It is cut off in the middle of two commits and two reads.
    doubtful, kept = history.put(victim), history.put(other)
    victim.say("commit", timeout=4 if victim is first else 1)
    other.say("commit", timeout=30)
    time.sleep(0.1)
    outside.say("read")
    inside.say("read")
    wire.cut()
    _, seconds = history.read(outside)
    assert seconds < 10
    if victim is first:  # it has all that it has written
        history.read(inside)
    else:
        outcome(inside)
    history.note(int(outcome(other)), kept)
    end = outcome(victim)
    if isinstance(end, int):  # the commit was faster
        history.note(end, doubtful)

    # The others are more than half, so they go on.
    begin = time.monotonic()
    newest = history.commit(outside)
    assert time.monotonic() - begin < 15
    assert newest not in inside.ask("versions")

    wire.mend()
    await_copies(other, 2, holders=3)
    for member in everybody:
        member.say("sums", timeout=60)  # TCP tries again after as long a time as it was cut
    assert {history.read(member)[0] for member in everybody} == {newest}
    for member in everybody:
        newest += 1
        assert history.commit(member) == newest
    for member in everybody:
        member.say("sums")
    assert {history.read(member)[0] for member in everybody} == {newest}


def test_a_guest_that_is_cut_off_from_the_leader_alone(
    network: Cluster, start_member: Callable[..., Member]
) -> None:
    """The other holder and the guest reach each other, and so do the two holders."""
    leader = start_member("found", "w", network.hosts[0])
    other = start_member("join", leader.address, network.hosts[1])
    guest = start_member("visit", leader.address, network.hosts[2])
    history = History()
    history.commit(leader)
    await_copies(leader, 2, holders=2)

    guest.ask("read")
    history.put(guest)
    guest.say("commit", timeout=1)
    time.sleep(0.1)  # both holders copy from it
    hide(network, 0, 2)
    # Nobody waits for the copy that the leader cannot finish.
    begin = time.monotonic()
    newest = history.commit(other)
    assert time.monotonic() - begin < 10
    assert "does not answer" in outcome(guest)
    guest.say("read")
    number, seconds = history.read(guest)
    assert number == newest
    assert seconds < 10

    find(network, 0, 2)
    assert history.commit(guest) == newest + 1
    for member in (leader, other, guest):
        member.say("sums")
        assert history.read(member)[0] == newest + 1
