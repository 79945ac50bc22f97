"""Regions of other hosts, emulated by network namespaces: the rate of the wire, of several wires
and of several holders."""

from __future__ import annotations

import time

import numpy as np
import pytest
from support.hosts import Network

import ringcoll

BYTES = 8 << 20
RATE = 100e6 / 8  # bytes a second of Network(rate="100mbit")


def read_from(world, owners):
    """Rank 0 reads BYTES that each of ``owners`` has, and returns the bytes a second."""
    mine = np.full(BYTES, 7, "uint8")
    region = world.register(mine)
    handle = region.handle()
    text = np.zeros(1024, "uint8")
    text[: len(handle)] = np.frombuffer(handle, "uint8")
    handles = [row.tobytes() for row in world.allgather(text).reshape(world.size, 1024)]
    lengths = world.allgather(np.array([len(handle)]))
    rate = 0.0
    if world.rank == 0:
        sources = [handles[owner][: lengths[owner]] for owner in owners]
        out = np.zeros(BYTES, "uint8")
        for source in sources:
            world.agent.read(source, out[:1])  # makes the links
        # What a shaped link sends at once is used up first.
        world.agent.transfer([ringcoll.Read(out[: 1 << 20], sources)])
        out[:] = 0
        begin = time.monotonic()
        world.agent.transfer([ringcoll.Read(out, sources)])
        rate = BYTES / (time.monotonic() - begin)
        assert (out == 7).all()
    world.barrier()
    region.close()
    return rate


@pytest.mark.parametrize("holders", [1, 2, 3])
def test_each_holder_adds_its_wire(run_ranks, emulate, places, holders):
    """The reader is on the head, whose own wire has no limit."""
    cluster = emulate(holders, [Network(rate="100mbit")])
    hosts = [cluster.head, *places(cluster, *[1] * holders)]

    def body(world):
        return read_from(world, range(1, 1 + holders))

    rate = max(run_ranks(1 + holders, body, hosts=hosts))
    assert rate > 0.85 * holders * RATE


def test_two_networks_are_used_at_once(run_ranks, emulate, places):
    hosts = places(emulate(2, [Network(rate="100mbit"), Network(rate="100mbit")]), 1, 1)

    def body(world):
        return read_from(world, [1])

    rate = max(run_ranks(2, body, hosts=hosts))
    assert rate > 1.5 * RATE
