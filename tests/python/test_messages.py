"""Messages with tags: who gets which, buffers of all kinds, handles and errors."""

from __future__ import annotations

import array
import os
import pickle
import threading
import time

import numpy as np
import pytest

import ringcoll
from ringcoll import ANY_SOURCE, ANY_TAG, Received

torch = pytest.importorskip("torch")
TRANSPORTS = ["shm", "tcp"]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("count", [0, 1, 1000, 300_000])
def test_there_and_back(run_ranks, transport, count):
    def body(world):
        x, y = np.arange(count, dtype="f4"), np.zeros(count, "f4")
        if world.rank == 0:
            world.send(x, 1, tag=3)
            assert world.recv(y, 1, tag=4) == Received(1, 4, 4 * count, count)
            assert (y == 2 * x).all()
        else:
            assert world.recv(y, ANY_SOURCE, ANY_TAG) == (0, 3, 4 * count, count)
            world.send(2 * y, 0, 4)

    run_ranks(2, body, env={"RINGCOLL_TRANSPORT": transport})


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_handles_in_any_order(run_ranks, transport):
    def body(world):
        xs = [np.full(500 * i, i + world.rank, "i4") for i in range(20)]
        ys = [np.zeros(500 * i, "i4") for i in range(20)]
        peer = 1 - world.rank
        receives = [world.irecv(ys[i], peer, tag=i) for i in range(20)]
        sends = [world.isend(xs[i], peer, tag=i) for i in reversed(range(20))]
        assert all(send.wait() is None for send in sends)
        for i in reversed(range(20)):
            assert receives[i].wait() == Received(peer, i, 2000 * i, 500 * i)
            assert receives[i].done()
            assert (ys[i] == i + peer).all()

    run_ranks(2, body, env={"RINGCOLL_TRANSPORT": transport})


def test_buffers_of_all_kinds(run_ranks):
    def body(world):
        if world.rank == 0:
            world.send(b"bytes are only read", 1)
            world.send(array.array("d", [1, 2, 3]), 1)
            world.send(torch.arange(4, dtype=torch.bfloat16), 1)
            world.send(np.float64(7).reshape(()), 1)
            return
        text = bytearray(30)
        assert world.recv(text, 0).bytes == 19
        assert text[:19] == b"bytes are only read"
        doubles = torch.zeros(3, dtype=torch.float64)
        assert world.recv(doubles, 0).elements == 3
        assert doubles.tolist() == [1, 2, 3]
        halves = torch.zeros(6, dtype=torch.bfloat16)
        assert world.recv(halves, 0) == (0, 0, 8, 4)
        assert halves.tolist() == [0, 1, 2, 3, 0, 0]
        one = np.zeros((), "f8")
        assert world.recv(one, 0).elements == 1
        assert one == 7

    run_ranks(2, body)


def test_a_message_that_is_too_long_says_so_and_stays(run_ranks):
    def body(world):
        if world.rank == 1:
            for count in (100, 100_000):
                world.send(np.arange(count), 0, tag=5)
            return
        for count in (100, 100_000):
            with pytest.raises(ringcoll.MessageTooLong, match=f"{8 * count} bytes") as caught:
                world.recv(np.zeros(10, "i8"), ANY_SOURCE, 5)
            error = caught.value
            assert (error.rank, error.tag, error.bytes) == (1, 5, 8 * count)
            assert "80 bytes" in str(error)
            again = pickle.loads(pickle.dumps(error))
            assert (again.rank, again.tag, again.bytes) == (1, 5, 8 * count)
            handle = world.irecv(np.zeros(10, "i8"), 1, 5)
            with pytest.raises(ringcoll.MessageTooLong) as caught:
                handle.wait()
            assert caught.value.bytes == 8 * count
            x = np.zeros(error.bytes // 8, "i8")
            world.recv(x, error.rank, error.tag)
            assert (x == np.arange(count)).all()

    run_ranks(2, body)


def test_a_receive_without_a_message_times_out_alone(run_ranks):
    def body(world):
        x = np.zeros(3)
        if world.rank == 0:
            with pytest.raises(ringcoll.Timeout, match="receive of at most 24 bytes from any rank"):
                world.recv(x, ANY_SOURCE, timeout=0.05)
            handle = world.irecv(x, 1, 2, timeout=0.05)
            with pytest.raises(ringcoll.Timeout) as caught:
                handle.wait()
            assert caught.value.rank == 1
        world.barrier()
        if world.rank == 1:
            world.send(np.ones(3), 0)
        else:
            world.recv(x, 1)
            assert x.sum() == 3

    run_ranks(2, body)


def test_a_wait_that_is_too_short_goes_on(run_ranks):
    def body(world):
        x = np.zeros(3)
        if world.rank == 0:
            handle = world.irecv(x, 1)
            with pytest.raises(TimeoutError):
                handle.wait(0.02)
            assert not handle.done()
            world.send(np.ones(1), 1)
            assert handle.wait().source == 1
        else:
            world.recv(np.zeros(1), 0)
            world.send(np.ones(3), 0)

    run_ranks(2, body)


def test_what_cannot_be_is_refused(run_ranks):
    def body(world):
        x = np.zeros(3)
        for ask, text in [
            (lambda: world.send(x, 2), "destination 2"),
            (lambda: world.send(x, ANY_SOURCE), "destination -1"),
            (lambda: world.isend(x, 0, ANY_TAG), "tag -1"),
            (lambda: world.recv(x, 1 << 40), "out of range"),
            (lambda: world.recv(b"12345678", 0), "read-only"),
            (lambda: world.irecv(x[::2], 0), "contiguous"),
            (lambda: world.send([1, 2], 0), "is no tensor"),
            (lambda: world.send(x, 0, timeout=0), "positive"),
        ]:
            with pytest.raises(ringcoll.InvalidArgument, match=text):
                ask()
        assert world.allreduce(np.ones(1)) == 2

    run_ranks(2, body)


def test_callbacks_serve_whoever_comes(run_ranks):
    """A parameter server: each request starts the receive of the next."""

    def body(world):
        clients, rounds = world.size - 1, 30
        if world.rank > 0:
            mine = np.zeros(1000)
            for number in range(rounds):
                world.send(np.full(1000, number + world.rank, "f8"), 0, tag=number)
                assert world.recv(mine, 0, tag=number).elements == 1000
                assert (mine == 2 * (number + world.rank)).all()
            return
        served, end = [], threading.Event()

        def listen():
            x = np.zeros(1000)
            world.irecv(x, ANY_SOURCE, ANY_TAG).add_done_callback(lambda handle: answer(handle, x))

        def answer(handle, x):
            got = handle.wait()
            served.append(world.isend(2 * x, got.source, got.tag))
            if len(served) < clients * rounds:
                listen()
            else:
                end.set()

        listen()
        assert end.wait(30)
        for handle in served:
            handle.wait()

    run_ranks(3, body)


def test_a_dropped_handle_keeps_its_buffer(run_ranks):
    def body(world):
        if world.rank == 0:
            for number in range(20):
                world.isend(np.full(10_000, number), 1)
        else:
            for number in range(20):
                x = np.zeros(10_000, "i8")
                world.recv(x, 0)
                assert (x == number).all()
        world.barrier()  # a close would end what nobody waits for

    run_ranks(2, body)


def test_no_thread_holds_the_gil_while_it_waits(run_ranks):
    def body(world):
        x = np.zeros(1)
        receiver = threading.Thread(target=lambda: world.recv(x, 1 - world.rank, 1))
        receiver.start()
        world.barrier()
        world.send(np.ones(1), 1 - world.rank, 1)
        receiver.join()
        assert x == 1

    run_ranks(2, body)


def test_a_rank_sends_to_itself(run_ranks):
    def body(world):
        x = np.zeros(100_000)
        handle = world.irecv(x, world.rank, 1)
        world.send(np.ones(100_000), world.rank, 1)
        assert handle.wait().source == world.rank
        world.send(np.full(5, 2.0), world.rank)
        assert world.recv(x, ANY_SOURCE).elements == 5
        assert x[:6].tolist() == [2, 2, 2, 2, 2, 1]

    run_ranks(1, body)


def test_stats_count_messages(run_ranks):
    def body(world):
        if world.rank == 0:
            world.send(np.zeros(1000), 1)
        else:
            world.recv(np.zeros(1000), 0)
        stats = world.stats()
        counted = [stats[name] for name in ("sends", "send_bytes", "receives", "receive_bytes")]
        assert counted == ([1, 8000, 0, 0] if world.rank == 0 else [0, 0, 1, 8000])

    run_ranks(2, body)


def test_a_forked_child_has_none_of_it(run_ranks):
    def body(world):
        x = np.zeros(1)
        handle = world.irecv(x, 1 - world.rank, 1)
        child = os.fork()
        if child == 0:
            try:
                with pytest.raises(ringcoll.InvalidArgument, match="forked"):
                    world.send(np.ones(1), 0)
                with pytest.raises(ringcoll.InvalidArgument, match="forked"):
                    handle.wait()
                del handle
                os._exit(0)
            except BaseException:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        world.send(np.ones(1), 1 - world.rank, 1)
        handle.wait()
        assert x == 1

    run_ranks(2, body)


def test_interrupt_reaches_a_wait_for_a_message(run_ranks):
    def body(world):
        import signal

        if world.rank == 0:
            handle = world.irecv(np.zeros(1), 1)
            timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            begin = time.monotonic()
            with pytest.raises(KeyboardInterrupt):
                handle.wait()
            assert time.monotonic() - begin < 10
            world.send(np.ones(1), 1)
            handle.wait()
        else:
            world.recv(np.zeros(1), 0)
            world.send(np.ones(1), 0)

    run_ranks(2, body)
