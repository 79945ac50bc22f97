"""Ranks on emulated hosts: shared memory within a host and tcp between them, right results, and a
rank of another host that dies."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import numpy as np
import pytest
from support.hosts import Network

import ringcoll

# One piece, several pieces, and one that does not divide by the ranks.
LENGTHS = (1, 1000, 300_007)


def pattern(length, rank):
    """Whole numbers: their float32 sum is exact in any order."""
    return ((np.arange(length) * 7 + 3 * rank) % 11).astype("f4")


def collectives_of(world, length):
    """Each collective once, and what this rank is to get."""
    size, rank = world.size, world.rank
    all_inputs = [pattern(length, other) for other in range(size)]
    mine, total = all_inputs[rank], sum(all_inputs)
    root = size - 1
    yield "allreduce", world.allreduce(mine), total
    yield "reduce", world.reduce(mine, root=root), total if rank == root else None
    yield "broadcast", world.broadcast(mine, root=root), all_inputs[root]
    yield "allgather", world.allgather(mine), np.concatenate(all_inputs)
    gathered = np.concatenate(all_inputs) if rank == root else None
    yield "gather", world.gather(mine, root=root), gathered
    rows = [pattern(size * length, other).reshape(size, length) for other in range(size)]
    sent = rows[root].ravel() if rank == root else None
    yield "scatter", world.scatter(sent, root=root, out=np.empty_like(mine)), rows[root][rank]
    yield "reduce_scatter", world.reduce_scatter(rows[rank].ravel()), sum(rows)[rank]
    mixed = np.concatenate([row[rank] for row in rows])
    yield "alltoall", world.alltoall(rows[rank].ravel()), mixed


def check_collectives(world):
    for length in LENGTHS:
        for name, got, wanted in collectives_of(world, length):
            if wanted is None:
                assert got is None, name
            else:
                np.testing.assert_array_equal(got, wanted, err_msg=f"{name} of {length}")
    world.barrier()
    return [peer["transport"] for peer in world.stats()["peers"]]


def transports(on_host, rank):
    """Of every peer of `rank`, where rank i is on host on_host[i]."""
    return [
        "self" if peer == rank else "shm" if on_host[peer] == on_host[rank] else "tcp"
        for peer in range(len(on_host))
    ]


@pytest.mark.parametrize(
    "on_host",
    [(0, 0, 1, 1), (0, 1, 0, 1), (0, 1, 1, 1, 2, 2)],
    ids=["2x2", "2x2, ranks in turn", "1, 3 and 2 ranks"],
)
def test_collectives_within_and_between_hosts(emulate, run_ranks, on_host):
    cluster = emulate(max(on_host) + 1)
    hosts = [cluster.hosts[index] for index in on_host]
    found = run_ranks(len(on_host), check_collectives, hosts=hosts)
    assert found == [transports(on_host, rank) for rank in range(len(on_host))]


def test_ranks_meet_by_a_store_on_another_host(emulate, run_ranks, places):
    def body(rank, size, _):
        with ringcoll.init(rank, size, "tcp://h1:7700") as world:
            return check_collectives(world)

    found = run_ranks(4, body, hosts=places(emulate(2), 2, 2), connect=False)
    assert found == [transports((0, 0, 1, 1), rank) for rank in range(4)]


def test_one_crossing_of_a_shaped_link_takes_its_time(emulate, run_ranks, places):
    """At 100 Mb/s, 2 MiB to another host take at least 0.16 s: the link is what is between them."""

    def body(world):
        x = np.ones(512 << 10, "f4")
        world.allreduce(x)
        begin = time.monotonic()
        world.allreduce(x)
        return time.monotonic() - begin

    hosts = places(emulate(2, [Network(rate="100mbit")]), 1, 1)
    # Of the rank that began first: to the other, part of the data may have come before.
    assert max(run_ranks(2, body, hosts=hosts)) > 0.14


def test_sigkill_on_another_host_is_named_by_all(emulate, start_ranks, places):
    def body(world):
        x = np.ones(1 << 20, "f4")
        world.barrier()
        Path(f"mark.{world.rank}").touch()
        try:
            while True:
                world.allreduce(x, "max", out=x)
        except ringcoll.Error as error:
            return type(error).__name__, error.rank, str(error), time.monotonic()

    job = start_ranks(4, body, hosts=places(emulate(2), 2, 2))
    for rank in range(4):
        job.wait_for(str(rank))
    killed = time.monotonic()
    job.kill(2)
    outcomes = job.join(20)
    assert outcomes[2].exit_code == -signal.SIGKILL
    for rank in (0, 1, 3):
        assert outcomes[rank].value, outcomes[rank].output
        kind, blamed, text, heard = outcomes[rank].value
        assert (kind, blamed) == ("PeerLost", 2)
        assert "rank 2" in text and "h2" in text
        assert heard - killed < 5  # of 20, the deadline
