"""A job on two hosts with two ranks each: shared memory within, RDMA between, by one cable or
two; and what becomes of it when the cable between them loses packets, or is pulled."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import ringcoll

pytestmark = pytest.mark.guest(guests=2, timeout=400)

PORT = 7810
OUT_S = 45  # queue pairs give up after 4 s, connections over TCP after 25
COUNT = 200_003


def start_job(start_ranks, hosts, body, port, **knobs):
    """`body(world)` on the two ranks of this host, of four in all. Over the first device, unless
    `knobs` say otherwise."""
    host, store = hosts.index, f"tcp://{hosts.addresses[0]}:{port}"

    def of_this_host(rank, _size, _store):
        return body(ringcoll.init(2 * host + rank, 4, store))

    env = {
        "RINGCOLL_INTERFACE": "rdma0",
        "RINGCOLL_DEVICES": f"{hosts.device.name}:{hosts.device.port}",
        "RINGCOLL_TIMEOUT_S": "60",
        **knobs,
    }
    return start_ranks(2, of_this_host, env=env, connect=False)


def values_of(job):
    """What its ranks on this host have returned."""
    outcomes = job.join(200)
    for outcome in outcomes:
        assert outcome.error is None, outcome.output
    return [outcome.value for outcome in outcomes]


@contextmanager
def netem(*what: str) -> Iterator[None]:
    """What the cable does to packets of this host."""
    change = ["tc", "qdisc"]
    subprocess.run([*change, "add", "dev", "rdma0", "root", "netem", *what], check=True)
    try:
        yield
    finally:
        subprocess.run([*change, "del", "dev", "rdma0", "root"], check=True)


def repeated(counters: dict[str, int]) -> int:
    """Packets that the device sent again, or asked its peer for."""
    return sum(by for name, by in counters.items() if "retr" in name or "seq" in name)


def sums(world):
    mine = (np.arange(COUNT) * (world.rank + 1) % 1000).astype("f4")
    wanted = sum((np.arange(COUNT) * (r + 1) % 1000).astype("f4") for r in range(world.size))
    for _ in range(3):
        assert (world.allreduce(mine) == wanted).all()
    return world.stats()


def test_shm_within_and_verbs_between(start_ranks, device, hosts):
    with device.counting() as moved:
        stats = values_of(start_job(start_ranks, hosts, sums, PORT))
    hosts.exchange()
    for one in stats:
        assert one["hosts"] == 2
        near, far = one["rank"] // 2 * 2 + 1 - one["rank"] % 2, (one["rank"] + 2) % 4
        by = {peer["rank"]: peer["transport"] for peer in one["peers"]}
        assert (by[near], by[far]) == ("shm", "verbs"), one
    assert device.packets_sent(moved) >= 3 * 4 * COUNT / 4096 / 2


def test_each_rank_of_a_host_has_a_port_of_its_own(start_ranks, devices, hosts):
    """The cables are networks that do not reach each other, and the ring has hops from a rank with
    the one port to a rank with the other. Loads of both devices are those of an even share."""
    if len(devices) < 2:
        pytest.skip("one port is up")

    def body(world):
        stats = sums(world)
        before = [device.packets_sent(device.counters()) for device in devices]
        world.barrier()
        for _ in range(3):
            world.allreduce(np.ones(4 * COUNT, "f4"))
        world.barrier()
        after = [device.packets_sent(device.counters()) for device in devices]
        return stats, [b - a for a, b in zip(before, after, strict=True)]

    names = [f"{device.name}:{device.port}" for device in devices[:2]]
    lanes = {"RINGCOLL_DEVICES": "", "RINGCOLL_ALGORITHM": "allreduce=direct/ring"}
    for stats, sent in values_of(start_job(start_ranks, hosts, body, PORT + 5, **lanes)):
        assert [peer["port"] for peer in stats["peers"]] == names + names
        # Each of the two lanes sends half of each vector.
        assert min(sent[:2]) > 3 * 4 * 4 * COUNT / 2 / 4096 * 0.9, sent
        assert max(sent[:2]) < 1.5 * min(sent[:2]), sent
    ring = {"RINGCOLL_DEVICES": ",".join(names), "RINGCOLL_ALGORITHM": "allreduce=ring"}
    for stats, _ in values_of(start_job(start_ranks, hosts, body, PORT + 6, **ring)):
        assert [peer["port"] for peer in stats["peers"]] == names + names
    hosts.exchange()


def test_loss_and_reordering_are_survived(start_ranks, device, hosts):
    """With 7 retries, which are without end here: Soft-RoCE begins a message again at the first
    packet that is missing, and counts each time, though others came in between."""
    patient = {"RINGCOLL_QP_TIMEOUT": "14", "RINGCOLL_QP_RETRIES": "7"}
    with netem("loss", "1%", "delay", "1ms", "reorder", "5%"), device.counting() as moved:
        values_of(start_job(start_ranks, hosts, sums, PORT + 1, **patient))
    hosts.exchange()
    assert repeated(moved) > 0, moved


def sums_until_told(world):
    """Sums until every rank of some host has been told to stop; how many."""
    mine = np.full(COUNT, world.rank + 1, "f4")
    calls = 0
    while world.allreduce(np.array([Path("mark.stop").exists()], "i4"), "max")[0] == 0:
        assert (world.allreduce(mine) == 10).all()
        calls += 1
        Path("mark.running").touch()
    return calls, world.stats()


def out_until_missed(device):
    """Pulls the cable for two seconds, and until the device has sent again what was lost. Only what
    this host sends is lost, data and acknowledgements, so neither host gets anywhere."""
    before, began = repeated(device.counters()), time.monotonic()
    with netem("loss", "100%"):
        while time.monotonic() < began + 2 or repeated(device.counters()) == before:
            assert time.monotonic() < began + 12, "the device has not sent anything again"
            time.sleep(0.05)


def test_a_cable_that_is_out_for_two_seconds_costs_only_time(start_ranks, device, hosts):
    """Shorter than what a queue pair tries, in the middle of the traffic."""
    patient = {"RINGCOLL_QP_TIMEOUT": "20"}  # 30 s, for an emulated 2 s may be long
    job = start_job(start_ranks, hosts, sums_until_told, PORT + 2, **patient)
    job.wait_for("running", 100)
    hosts.exchange()
    if hosts.index == 0:
        out_until_missed(device)
    hosts.exchange()
    if hosts.index == 0:
        (job.folder / "mark.stop").touch()
    values = values_of(job)
    assert all(calls > 0 for calls, _ in values)
    assert all("verbs" in {peer["transport"] for peer in s["peers"]} for _, s in values)
    hosts.exchange()


def test_an_interface_that_stays_down_ends_the_job_with_its_cause(
    start_ranks, device, hosts, in_guest, bring_up
):
    """That of the second host. Ranks on both raise before the deadline of 60 s, and each host by
    itself, for what the other has found does not come through: by its writes, or where it only
    waited, by its lifelines."""
    if not in_guest:
        pytest.skip("an interface of the host is not taken down")

    def body(world):
        try:
            sums_until_told(world)
        except ringcoll.Error as error:
            return type(error).__name__, str(error), time.monotonic()

    job = start_job(start_ranks, hosts, body, PORT + 3)
    job.wait_for("running", 100)
    hosts.exchange()
    pulled = time.monotonic()
    if hosts.index == 1:
        subprocess.run(["ip", "link", "set", "rdma0", "down"], check=True)
    try:
        values = values_of(job)
        if hosts.index == 1:  # the first host must have noticed by then
            time.sleep(max(0.0, pulled + OUT_S - time.monotonic()))
    finally:
        if hosts.index == 1:
            bring_up("rdma0")
    hosts.exchange()
    ways = {
        "TransportError": [
            ("retry exceeded", "local operation error")[hosts.index],
            ("the peer's device did not answer", "its interface is down")[hosts.index],
            f"verbs {device.name}:{device.port}, gid ",
        ],
        "PeerLost": ["nothing is heard of rank", "the network to it is down"],
    }
    for name, text, when in values:
        assert when - pulled < OUT_S, text
        for word in ways[name]:
            assert word in text, text


def test_a_host_without_a_device_makes_all_of_them_go_by_tcp(start_ranks, hosts):
    """Agreed before data flows; where verbs was asked for by name, the start fails instead."""

    def body(world):
        assert (world.allreduce(np.ones(1000)) == world.size).all()
        return {peer["transport"] for peer in world.stats()["peers"]}

    knobs = {"RINGCOLL_DEVICES": "none_here"} if hosts.index else {}
    for between in values_of(start_job(start_ranks, hosts, body, PORT + 4, **knobs)):
        assert between == {"self", "shm", "tcp"}
    hosts.exchange()
