"""A job on two hosts with two ranks each: shared memory within, RDMA between."""

from __future__ import annotations

import subprocess

import numpy as np
import pytest

import ringcoll

pytestmark = pytest.mark.guest(guests=2, timeout=400)

PORT = 7810
COUNT = 200_003


def job(start_ranks, hosts, body, port, **knobs):
    """`body(world)` on the two ranks of this host, of four in all; their values."""
    host, store = hosts.index, f"tcp://{hosts.addresses[0]}:{port}"

    def of_this_host(rank, _size, _store):
        return body(ringcoll.init(2 * host + rank, 4, store))

    env = {"RINGCOLL_INTERFACE": "rdma0", "RINGCOLL_TIMEOUT_S": "60", **knobs}
    outcomes = start_ranks(2, of_this_host, env=env, connect=False).join(200)
    for outcome in outcomes:
        assert outcome.error is None, outcome.output
    return [outcome.value for outcome in outcomes]


def sums(world):
    mine = (np.arange(COUNT) * (world.rank + 1) % 1000).astype("f4")
    wanted = sum((np.arange(COUNT) * (r + 1) % 1000).astype("f4") for r in range(world.size))
    for _ in range(3):
        assert (world.allreduce(mine) == wanted).all()
    return world.stats()


def test_shm_within_and_verbs_between(start_ranks, device, hosts):
    with device.counting() as moved:
        stats = job(start_ranks, hosts, sums, PORT)
    hosts.exchange()
    for one in stats:
        assert one["hosts"] == 2
        near, far = one["rank"] // 2 * 2 + 1 - one["rank"] % 2, (one["rank"] + 2) % 4
        by = {peer["rank"]: peer["transport"] for peer in one["peers"]}
        assert (by[near], by[far]) == ("shm", "verbs"), one
    assert device.packets_sent(moved) >= 3 * 4 * COUNT / 4096 / 2


def test_loss_and_reordering_are_survived(start_ranks, device, hosts):
    """With 7 retries, which are without end here: Soft-RoCE begins a message again at the first
    packet that is missing, and counts each time, though others came in between."""
    patient = {"RINGCOLL_QP_TIMEOUT": "14", "RINGCOLL_QP_RETRIES": "7"}
    lossy = ["tc", "qdisc", "add", "dev", "rdma0", "root", "netem"]
    subprocess.run([*lossy, "loss", "1%", "delay", "1ms", "reorder", "5%"], check=True)
    try:
        with device.counting() as moved:
            job(start_ranks, hosts, sums, PORT + 1, **patient)
    finally:
        subprocess.run(["tc", "qdisc", "del", "dev", "rdma0", "root"], check=True)
    hosts.exchange()
    repeated = {name: by for name, by in moved.items() if "retr" in name or "seq" in name}
    assert sum(repeated.values()) > 0, moved
