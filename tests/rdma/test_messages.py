"""Messages with tags over a real kernel RDMA device."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import numpy as np
import pytest

import ringcoll
from ringcoll import ANY_SOURCE, ANY_TAG, Received

pytestmark = pytest.mark.guest(cpus=2, timeout=200)

VERBS = {"RINGCOLL_TRANSPORT": "verbs"}


def test_of_all_lengths_went_through_the_device(start_ranks, device):
    counts = [0, 1, 5, 100, 2000, 16_384, 300_001]  # int32: inline, in a slot, of several pieces

    def body(world):
        peer = 1 - world.rank
        xs = [np.arange(count, dtype="i4") * (world.rank + 1) for count in counts]
        ys = [np.zeros(count, "i4") for count in counts]
        receives = [world.irecv(y, peer, tag) for tag, y in enumerate(ys)]
        sends = [world.isend(x, peer, tag) for tag, x in reversed(list(enumerate(xs)))]
        for tag, (count, receive) in enumerate(zip(counts, receives, strict=True)):
            assert receive.wait() == Received(peer, tag, 4 * count, count)
            assert (ys[tag] == np.arange(count) * (peer + 1)).all()
        for send in sends:
            send.wait()

    with device.counting() as moved:
        outcomes = start_ranks(2, body, env=VERBS).join(120)
    for outcome in outcomes:
        assert outcome.error is None, outcome.output
    assert device.packets_sent(moved) >= 2 * 4 * sum(counts) / 4096


def test_from_any_rank_beside_calls(start_ranks):
    def body(world):
        call = world.allreduce_async(np.full(100_000, world.rank, "f4"))
        if world.rank > 0:
            world.send(np.full(50_000, world.rank, "i4"), 0, tag=world.rank)
        heard = []
        for _ in range(world.size - 1 if world.rank == 0 else 0):
            y = np.zeros(50_000, "i4")
            found = world.recv(y, ANY_SOURCE, ANY_TAG)
            assert (y == found.source).all() and found.tag == found.source
            heard.append(found.source)
        assert (call.wait() == 3).all()
        return sorted(heard)

    outcomes = start_ranks(3, body, env=VERBS).join(120)
    assert [outcome.value for outcome in outcomes] == [[1, 2], [], []], outcomes[0].output


def test_long_ones_from_memory_that_comes_back_are_not_copied(start_ranks):
    def body(world):
        peer, copied = 1 - world.rank, []
        x, y = np.zeros(300_000, "i4"), np.zeros(300_000, "i4")
        for turn in range(4):
            x[:] = np.arange(x.size) * (world.rank + 1) + turn
            receive = world.irecv(y, peer, 1)
            world.send(x, peer, 1)
            receive.wait()
            assert (y == np.arange(y.size) * (peer + 1) + turn).all()
            stats = world.stats()
            copied.append((stats["send_bytes_packed"], stats["receive_bytes_unpacked"]))
        return copied

    outcomes = start_ranks(2, body, env=VERBS).join(120)
    for outcome in outcomes:
        assert outcome.error is None, outcome.output
        # It is registered when it comes for the second time.
        assert outcome.value == [(1_200_000, 1_200_000)] * 4


def test_memory_that_was_freed_is_not_sent_again(start_ranks):
    def body(world):
        peer, addresses = 1 - world.rank, set()
        for turn in range(8):
            x, y = np.full(1 << 20, turn + world.rank, "i4"), np.zeros(1 << 20, "i4")
            addresses |= {x.ctypes.data, y.ctypes.data}
            receive = world.irecv(y, peer, 1)
            world.send(x, peer, 1)
            receive.wait()
            assert (y == turn + peer).all()
            del x, y
        return len(addresses)

    outcomes = start_ranks(2, body, env=VERBS).join(150)
    for outcome in outcomes:
        assert outcome.error is None, outcome.output
        assert outcome.value < 16, "no address came back, so that this shows nothing"


def test_after_an_abort_nothing_is_written_to_what_was_lent(start_ranks):
    def body(world):
        peer, (x, y) = 1 - world.rank, np.ones((2, 4 << 20), "u1")
        for _ in range(3):  # which registers both
            receive = world.irecv(y, peer, 1)
            world.send(x, peer, 1)
            receive.wait()
        world.barrier()
        handles = []
        with contextlib.suppress(ringcoll.Error):  # the other may be earlier
            handles.append(world.irecv(y, peer, 2))
            handles.append(world.isend(x, peer, 2))
        if world.rank == 0:
            time.sleep(0.02)
            world.abort("that is enough")
        for handle in handles:
            with contextlib.suppress(ringcoll.Error):
                handle.wait()
        x[:] = y[:] = 7
        time.sleep(0.5)
        return bool((y == 7).all())

    outcomes = start_ranks(2, body, env=VERBS).join(120)
    for outcome in outcomes:
        assert outcome.error is None, outcome.output
        assert outcome.value


def test_a_killed_peer_ends_what_is_pending(start_ranks):
    def body(world):
        world.barrier()
        if world.rank == 1:
            Path("mark.running").touch()
            world.recv(np.zeros(1), 0, tag=9)
        handles = [world.irecv(np.zeros(10), 1), world.isend(np.ones(1 << 20), 1, 2)]
        Path("mark.pending").touch()
        found = []
        for handle in handles:
            with pytest.raises(ringcoll.PeerLost) as caught:
                handle.wait()
            found.append(caught.value.rank)
        return found

    job = start_ranks(2, body, env=VERBS)
    job.wait_for("running")
    job.wait_for("pending")
    job.kill(1)
    outcomes = job.join(60)
    assert outcomes[0].value == [1, 1], outcomes[0].output
