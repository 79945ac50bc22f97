"""Agents of two hosts, each with a device of its own, copy by RDMA."""

from __future__ import annotations

import numpy as np
import pytest

import ringcoll

pytestmark = pytest.mark.guest(guests=2, timeout=200)

BYTES = 16 << 20


def pattern(index: int) -> np.ndarray:
    return (np.arange(BYTES, dtype="uint64") * (index + 3) % 251).astype("uint8")


@pytest.fixture(params=["auto", "verbs"])
def agent(request, hosts, monkeypatch):
    monkeypatch.setenv("RINGCOLL_TRANSPORT", request.param)
    monkeypatch.setenv("RINGCOLL_INTERFACE", hosts.addresses[hosts.index] + "/24")
    with ringcoll.serve("test", "key") as agent:
        yield agent


def test_both_read_and_write_what_the_other_has(agent, hosts, device):
    memory = pattern(hosts.index)
    region = agent.register(memory, writable=True)
    theirs = bytes.fromhex(hosts.exchange(region.handle().hex()))
    out = np.zeros(BYTES, "uint8")
    with device.counting() as moved:
        agent.read(theirs, out)
        hosts.exchange()
        agent.write(theirs, np.full(BYTES, 9, "uint8"), notice=1)
        assert region.wait_notice(timeout=60) == 1
    assert (out == pattern(1 - hosts.index)).all()
    assert (memory == 9).all()
    stats = agent.stats()
    assert stats["by"] == {"host": 0, "tcp": 0, "rdma": 2 * BYTES}
    assert stats["answered"] == 0
    assert device.packets_sent(moved) >= 2 * BYTES / 4096
    hosts.exchange()
    region.close()


def test_a_region_of_the_other_host_that_is_closed_is_gone(agent, hosts):
    region = agent.register(pattern(hosts.index))
    theirs = bytes.fromhex(hosts.exchange(region.handle().hex()))
    out = np.zeros(BYTES, "uint8")
    agent.read(theirs, out)
    hosts.exchange()
    region.close()
    hosts.exchange()
    with pytest.raises(ringcoll.Gone):
        agent.read(theirs, out)
    hosts.exchange()
