"""Hosts that go without a word: noticed by lifelines, and done without."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

import ringcoll


def unplug(cluster):
    """Nothing comes from the second host, and nothing reaches it, as if it had no power."""
    cluster.head.configure("ip", ["link set dev n0-h2 nomaster"])


def take_down(cluster):
    """The host itself sees that it has no network, and the others do not."""
    cluster.hosts[1].configure("ip", ["link set dev eth0 down"])


def deafen(cluster):
    """What the second host sends arrives, and what is sent to it does not."""
    # Without this the second host would ask again (ARP) for the address of the first, hear no
    # answer, and send nothing more.
    first = cluster.hosts[0].addresses[0]
    cluster.hosts[1].configure("ip", [f"neigh change {first} dev eth0 nud permanent"])
    cluster.head.configure("tc", ["qdisc replace dev n0-h2 root tbf rate 8bit burst 1 limit 1"])


# Seconds in which the lifeline notices it, and in which the others go on without it.
NOTICED_S, SHRUNK_S = 15, 20


@pytest.mark.parametrize("lose", [unplug, take_down, deafen])
@pytest.mark.parametrize("timeout", [60, 9])
def test_a_host_that_is_gone_is_done_without(emulate, start_ranks, places, lose, timeout):
    """With a deadline of a call, and so a ping, while the silence is counted, and with none."""

    def body(world):
        x = np.ones(100_000, "f4")
        world.allreduce(x)
        Path(f"mark.{world.rank}").touch()
        seen = {}
        try:
            while True:
                world.allreduce(x)
                time.sleep(0.01)
        except ringcoll.Error as error:
            seen.update(kind=type(error).__name__, rank=error.rank, text=str(error))
            seen["noticed"] = time.monotonic()
        now, seen["tries"] = world, []
        while "size" not in seen:
            try:
                now = now.shrink()
                seen.update(total=float(now.allreduce(np.ones(1))[0]), size=now.size)
            except (ringcoll.Timeout, ringcoll.PeerLost) as error:
                seen["tries"].append((time.monotonic(), str(error)))
                # Some were heard that hear nothing, and hold this one for lost.
                if "hold this one for lost" in str(error):
                    seen.update(size=0)
        seen["shrunk"] = time.monotonic()
        return seen

    cluster = emulate(2)
    env = {"RINGCOLL_TIMEOUT_S": str(timeout)}
    job = start_ranks(6, body, hosts=places(cluster, 3, 3), env=env)
    for rank in range(6):
        job.wait_for(str(rank))
    lost = time.monotonic()
    lose(cluster)
    outcomes = job.join(60)
    for rank, outcome in enumerate(outcomes):
        seen = outcome.value
        assert seen, outcome.output
        here = (rank // 3 * 3, rank // 3 * 3 + 3)
        left = [other for other in range(*here) if outcomes[other].value["size"] > 0]
        # What the second host says of those whom it does not hear is heard, and some are left out.
        assert left == list(range(*here)) or (lose is deafen and rank < 3), seen
        if rank in left:
            assert (seen["size"], seen["total"]) == (len(left), len(left)), seen
            assert ("not more than half" in outcome.output) == (rank == left[0])
        tries = [outcome.value["tries"] for outcome in outcomes]
        assert seen["shrunk"] - lost < SHRUNK_S, (lost, seen, tries)
        if timeout > NOTICED_S:
            assert seen["noticed"] - lost < NOTICED_S, seen
            assert seen["kind"] == "PeerLost", seen
            if lose is not deafen or rank >= 3:  # the others may be told by the second host
                assert "its host or the network" in seen["text"]
                assert not here[0] <= seen["rank"] < here[1], seen
                assert f"on {'h2' if rank < 3 else 'h1'})" in seen["text"]


def test_one_that_hears_nothing_and_ends_is_done_without(emulate, start_ranks, places):
    """Who ends then says goodbye to nobody: its kernel would wait for answers to what was said."""

    def body(world):
        x = np.ones(100_000, "f4")
        world.allreduce(x)
        Path(f"mark.{world.rank}").touch()
        with pytest.raises(ringcoll.PeerLost):
            while True:
                world.allreduce(x)
                time.sleep(0.01)
        if world.rank == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        if world.rank >= 3:
            return None
        try:
            size = world.shrink().size
        except ringcoll.PeerLost as error:  # as the second host says
            assert "hold this one for lost" in str(error)
            size = 0
        return time.monotonic(), size

    cluster = emulate(2)
    job = start_ranks(6, body, hosts=places(cluster, 3, 3), env={"RINGCOLL_TIMEOUT_S": "60"})
    for rank in range(6):
        job.wait_for(str(rank))
    lost = time.monotonic()
    deafen(cluster)
    outcomes = job.join(60)
    for outcome in outcomes[:3]:
        assert outcome.value, outcome.output
        assert outcome.value[0] - lost < SHRUNK_S
    sizes = [size for _, size in (outcome.value for outcome in outcomes[:3]) if size > 0]
    assert sizes == [len(sizes)] * len(sizes)
    assert [outcome.exit_code for outcome in outcomes[3:]] == [0, 0, -signal.SIGKILL]
