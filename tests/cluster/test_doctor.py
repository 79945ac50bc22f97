"""``ringcoll doctor`` under a launcher, on emulated hosts of which one or a pair is not as the
others: it names exactly that one, and nothing where all are alike."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from typing import Any

import pytest
from support.hosts import Network

RATE = "200mbit"  # what the machine can carry between all hosts at once, whatever else it does


@dataclass
class Told:
    """What rank 0 printed as JSON, and how all ranks ended."""

    said: dict[str, Any]
    status: list[int]
    errors: list[str]

    @property
    def wrong(self) -> list[tuple[str, str]]:
        found = self.said["findings"]
        return [(f["part"], f["detail"]) for f in found if f["status"] == "failed"]


@pytest.fixture
def doctor(run_command):
    """doctor(places, env={}, options=[], **as run_command) -> Told"""

    def run(places, env=None, options=(), **more):
        words = ["doctor", "--json", *options]
        out, errors, status = run_command(places, words, env, **more)
        assert not any(out[1:]), "rank 0 alone prints"
        return Told(json.loads(out[0]), status, errors)

    return run


def sh(host, script: str) -> None:
    subprocess.run(host.command(["sh", "-ec", script]), check=True, capture_output=True, timeout=30)


def test_hosts_that_are_alike(emulate, places, doctor):
    told = doctor(places(emulate(3, [Network(rate=RATE)]), 2, 1, 1))
    assert told.wrong == [] and told.status == [0] * 4, told
    assert [host["name"] for host in told.said["hosts"]] == ["h1", "h2", "h3"]
    assert [host["ranks"] for host in told.said["hosts"]] == [[0, 1], [2], [3]]
    views = told.said["views"]
    assert len(views) == 6 and all(view["reached"] for view in views)
    for view in views:
        assert 0.25 * 25e6 < view["bytes_per_s"] < 1.2 * 25e6, view
        assert view["path_mtu"] == 1500 and view["round_trip_us"] > 0


def test_they_may_meet_in_a_directory(emulate, places, doctor, tmp_path):
    store = tmp_path / "store"
    store.mkdir()
    # What a run that was killed may have left.
    (store / "ringcoll-cluster.hello.1").write_text('{"token": "old", "report": {}}')
    (store / "ringcoll-cluster.go").write_text('{"run": "old", "tokens": {"1": "old"}}')
    told = doctor(places(emulate(2), 1, 1), {"RINGCOLL_STORE": f"file://{store}"})
    assert told.wrong == [] and told.status == [0, 0], told
    assert list(store.iterdir()) == []


def test_a_smaller_mtu(emulate, places, doctor):
    cluster = emulate(3, [Network(rate=RATE)])
    sh(cluster.hosts[1], "ip link set dev eth0 mtu 1400")
    told = doctor(places(cluster, 1, 1, 1))
    [(part, detail)] = told.wrong
    assert part == "MTU of the interface" and detail.startswith("host h2: 1400 bytes"), told
    assert told.status == [1, 0, 0]


def test_a_narrow_path(emulate, places, doctor):
    """A tunnel or switch port between full-sized interfaces."""
    cluster = emulate(3, [Network(rate=RATE)])
    cluster.head.configure("ip", ["link set dev n0-h3 mtu 1300"])
    told = doctor(places(cluster, 1, 1, 1))
    assert told.wrong and all("1300" in detail for _, detail in told.wrong), told
    assert {part for part, _ in told.wrong} == {"path MTU of host h3"}, told


def test_a_slow_link(emulate, places, doctor):
    cluster = emulate(3, [Network(rate=RATE)])
    sh(cluster.hosts[2], "tc qdisc replace dev eth0 root tbf rate 20mbit burst 64kb latency 20ms")
    told = doctor(places(cluster, 1, 1, 1))
    [(part, detail)] = told.wrong
    assert part == "host h3" and detail.startswith("sends ") and "tc qdisc" in detail, told


def test_a_pair_that_is_blocked(emulate, places, doctor):
    cluster = emulate(3, [Network(rate=RATE)])
    sh(cluster.hosts[1], "ip route add blackhole 10.0.0.3/32")
    told = doctor(places(cluster, 1, 1, 1))
    [(part, detail)] = told.wrong
    assert part == "hosts h2 and h3" and "do not reach one another" in detail, told
    assert told.status == [1, 0, 0]


def test_a_host_that_is_reached_by_another_network_alone(emulate, places, doctor):
    cluster = emulate(3, [Network(), Network(interface="ib{network}", rate=RATE)])
    for peer in (0, 1):
        sh(cluster.hosts[2], f"ip route add blackhole {cluster.hosts[peer].addresses[0]}/32")
    told = doctor(places(cluster, 1, 1, 1), {"MASTER_ADDR": "10.0.1.1"})
    assert told.wrong == [] and told.status == [0, 0, 0], told
    notes = [(f["part"], f["detail"]) for f in told.said["findings"] if f["status"] == "note"]
    assert any(part == "host h3" and "10.0.1.3 does answer" in detail for part, detail in notes)
    told = doctor(
        places(cluster, 1, 1, 1), {"MASTER_ADDR": "10.0.1.1", "RINGCOLL_INTERFACE": "eth"}
    )
    assert {part for part, _ in told.wrong} == {"host h3"}, told


def test_a_knob_that_differs(emulate, places, doctor):
    hosts = places(emulate(3, [Network(rate=RATE)]), 2, 2, 2)
    told = doctor(hosts, of={3: {"RINGCOLL_TCP_STREAMS": "4"}})
    [(part, detail)] = told.wrong
    assert part == "RINGCOLL_TCP_STREAMS", told
    assert detail.startswith("rank 3 (h2): 4, elsewhere 0"), detail
    assert told.status == [1, 0, 0, 0, 0, 0]


def test_a_rank_that_does_not_come_and_one_with_another_secret(emulate, places, doctor):
    hosts = places(emulate(2), 2, 2)
    of = {2: {"RINGCOLL_SECRET": "other"}}
    told = doctor(hosts, {"RINGCOLL_SECRET": "s"}, options=["--wait", 8], of=of, ranks=[0, 1, 2])
    assert ("ranks", "ranks 2, 3 of 4 did not come to the meeting place") in [
        (part, detail.split(".")[0]) for part, detail in told.wrong
    ]
    assert told.status == [1, 0, 1]
    assert "rank 2 on h2" in told.errors[2] and "RINGCOLL_SECRET" in told.errors[2], told


def test_a_host_that_cannot_reach_the_meeting_place(emulate, places, doctor):
    cluster = emulate(3)
    sh(cluster.hosts[2], "ip route add blackhole 10.0.0.1/32")
    told = doctor(places(cluster, 1, 1, 1), options=["--wait", 5])
    assert told.wrong[0][1].startswith("rank 2 of 3 did not come"), told
    assert told.status == [1, 0, 1] and "tcp://h1" in told.errors[2], told.errors
    assert {host["name"] for host in told.said["hosts"]} == {"h1", "h2"}


def test_rank_0_that_does_not_come(emulate, places, run_command, tmp_path):
    store = tmp_path / "store"
    store.mkdir()
    env = {"RINGCOLL_STORE": f"file://{store}"}
    hosts = places(emulate(2), 1, 1)
    _, [error], [status] = run_command(hosts, ["doctor", "--wait", 1], env, ranks=[1])
    assert status == 1 and "rank 0 did not begin" in error, error
    assert list(store.iterdir()) == []


def test_the_table_that_people_see(emulate, places, run_command):
    [out, nothing], errors, status = run_command(places(emulate(1), 2), ["doctor"])
    assert nothing == "" and status == [0, 0], (out, errors)
    for words in ("torchrun: rank 0 of 2", "1 host ", "0 to 1", "eth0, 10.0.0.1", "All hosts are"):
        assert words in out, out
