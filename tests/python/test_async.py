"""Handles: order, lifetime of tensors, waiting, Ctrl-C, and that nothing holds the GIL while it
waits."""

from __future__ import annotations

import gc
import inspect
import os
import signal
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest

import ringcoll
from ringcoll import _core


def test_many_in_flight_waited_in_any_order(run_ranks):
    def body(world):
        handles = [world.allreduce_async(np.full(1000, number)) for number in range(50)]
        handles.append(world.barrier_async())
        for number in reversed(range(50)):
            assert (handles[number].wait() == 2 * number).all()
        assert handles[50].wait() is None
        assert handles[0].done() and (handles[0].wait() == 0).all()

    run_ranks(2, body)


TWINS = [
    name for name in vars(ringcoll.Communicator) if f"{name}_async" in vars(ringcoll.Communicator)
]


def test_every_collective_has_a_twin_with_its_parameters():
    assert set(TWINS) == set(_core.collectives())
    for name in TWINS:
        twin = getattr(ringcoll.Communicator, f"{name}_async")
        parameters = inspect.signature(getattr(ringcoll.Communicator, name)).parameters
        assert list(parameters.values()) == list(inspect.signature(twin).parameters.values()), name


@pytest.mark.parametrize("way", ["blocking", "async"])
def test_every_argument_counts(run_ranks, way):
    """None has its default here, and each result would be another without it."""

    def body(world):
        def check(name, x, wanted, **arguments):
            out = None if wanted is None else np.full_like(wanted, -1)
            method = getattr(world, name if way == "blocking" else f"{name}_async")
            result = method(x, out=out, **arguments)
            if way == "async":
                result = result.wait()
            assert result is out, name
            assert np.array_equal(result, wanted) or result is wanted is None, (name, result)

        me = world.rank
        xs = [np.arange(6.0) + 10 * rank for rank in range(2)]
        scales = {"prescale": 2.0, "postscale": -3.0}
        highest, lowest = -6 * xs[1], -6 * xs[0]
        counts = [2, 4]
        mine = slice(0, 2) if me == 0 else slice(2, 6)
        joined = np.concatenate([xs[0][:2], xs[1][:4]])
        at_root = me == 1
        check("allreduce", xs[me], highest, op="max", **scales)
        check("reduce", xs[me], lowest if at_root else None, op="min", root=1, **scales)
        check("broadcast", xs[me], xs[1], root=1)
        check("allgather", xs[me][: counts[me]], joined, counts=counts)
        check("gather", xs[me][: counts[me]], joined if at_root else None, root=1, counts=counts)
        check("scatter", xs[1] if at_root else None, xs[1][mine], root=1, counts=counts)
        check("reduce_scatter", xs[me], highest[mine], op="max", counts=counts, **scales)
        check("scan", xs[me], -6 * xs[me], op="max", **scales)
        below = -6 * xs[0] if me else np.full(6, -np.inf)
        check("exscan", xs[me], below, op="max", **scales)
        # Rank 0 keeps one row and sends five; of rank 1 it gets two.
        swapped = [[*xs[0][:1], *xs[1][:2]], [*xs[0][1:], *xs[1][2:]]][me]
        sent, received = [[1, 5], [2, 4]], [[1, 2], [5, 4]]
        check(
            "alltoall",
            xs[me],
            np.array(swapped),
            send_counts=sent[me],
            recv_counts=received[me],
        )
        defaults = world.alltoall(xs[me]) if way == "blocking" else world.alltoall_async(xs[me])
        wanted = np.concatenate([x.reshape(2, 3)[me] for x in xs])
        assert np.array_equal(defaults if way == "blocking" else defaults.wait(), wanted)

    run_ranks(2, body)


def test_tensors_live_until_the_call_has_ended(run_ranks):
    def body(world):
        class Array(np.ndarray):
            pass

        x = np.ones(1000).view(Array)
        alive = weakref.ref(x)
        if world.rank == 1:
            time.sleep(0.3)  # rank 0's call cannot end before
        handle = world.allreduce_async(x)
        del x
        gc.collect()
        if world.rank == 0:
            assert alive() is not None
        assert (handle.wait() == 2).all()
        gc.collect()
        assert alive() is None

    run_ranks(2, body)


def test_the_call_of_a_dropped_handle_goes_on(run_ranks):
    def body(world):
        out = np.zeros(1000)
        world.allreduce_async(np.ones(1000), out=out)
        world.barrier()  # calls end in their order
        assert (out == 2).all()

    run_ranks(2, body)


def test_wait_with_a_timeout_goes_on(run_ranks):
    def body(world):
        if world.rank == 1:
            time.sleep(2)
        handle = world.allreduce_async(np.ones(3))
        if world.rank == 0:
            begin = time.monotonic()
            with pytest.raises(TimeoutError, match="goes on") as caught:
                handle.wait(0.15)
            assert 0.14 < time.monotonic() - begin < 1.5
            assert not isinstance(caught.value, ringcoll.Error)
            for no_time in (0, -1):
                with pytest.raises(TimeoutError, match="goes on"):
                    handle.wait(no_time)
            assert not handle.done()
        assert (handle.wait(10) == 2).all()
        assert (world.allreduce(np.ones(1)) == 2).all()

    run_ranks(2, body)


def test_waiting_does_not_hold_the_gil(run_ranks):
    def wait_blocking(world):
        world.barrier()

    def wait_async(world):
        world.barrier_async().wait()

    def body(world):
        for wait in (wait_blocking, wait_async):
            if world.rank == 1:
                time.sleep(0.5)
                wait(world)
                continue
            ticks = []
            ended = threading.Event()

            def tick(ticks=ticks, ended=ended):
                while not ended.is_set():
                    ticks.append(time.monotonic())
                    time.sleep(0.001)

            ticker = threading.Thread(target=tick)
            ticker.start()
            begin = time.monotonic()
            wait(world)
            assert time.monotonic() - begin > 0.2
            ended.set()
            ticker.join()
            assert len(ticks) > 50

    run_ranks(2, body)


def test_calls_of_several_threads(run_ranks):
    """One communicator for each thread: the order of calls on each is then the same on all
    ranks."""

    def body(world):
        subs = [world.split([0, 1]) for _ in range(3)]
        sums = [0.0] * 3

        def work(index):
            for number in range(30):
                sums[index] += subs[index].allreduce(np.full(10, float(number)))[0]

        threads = [threading.Thread(target=work, args=(index,)) for index in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sums == [2.0 * sum(range(30))] * 3
        for sub in subs:
            sub.close()

    run_ranks(2, body)


def test_ctrl_c_interrupts_a_wait(start_ranks):
    def body(world):
        handle = world.allreduce_async(np.ones(3))
        if world.rank == 0:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            Path("mark.waiting").touch()
            begin = time.monotonic()
            with pytest.raises(KeyboardInterrupt):
                handle.wait()
            assert time.monotonic() - begin < 10
            Path("mark.interrupted").touch()
        else:
            while not Path("mark.interrupted").exists():
                time.sleep(0.01)
        if world.rank == 1:
            time.sleep(0.1)
        return float(handle.wait()[0])

    def late(world):
        # Rank 1 takes part only once rank 0 was interrupted.
        if world.rank == 1:
            while not Path("mark.interrupted").exists():
                time.sleep(0.01)
        return body(world)

    job = start_ranks(2, late)
    job.wait_for("waiting")
    time.sleep(0.1)
    os.kill(job.pids[0], signal.SIGINT)
    assert [outcome.value for outcome in job.join()] == [2.0, 2.0]


def test_ctrl_c_interrupts_init(start_ranks):
    def body(rank, size, store):
        signal.signal(signal.SIGINT, signal.default_int_handler)
        Path("mark.starting").touch()
        begin = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            ringcoll.init(0, 2, store)
        return time.monotonic() - begin

    job = start_ranks(1, body, connect=False)
    job.wait_for("starting")
    time.sleep(0.3)
    os.kill(job.pids[0], signal.SIGINT)
    (outcome,) = job.join(10)
    assert outcome.value < 5, outcome.output


def test_requests_end_when_the_communicator_is_closed(run_ranks):
    def body(world):
        if world.rank == 1:
            time.sleep(1)
            return None
        running = world.allreduce_async(np.ones(3))
        queued = [world.allreduce_async(np.ones(3)) for _ in range(3)]
        time.sleep(0.1)
        world.close()
        for handle in (running, *queued):
            with pytest.raises(ringcoll.Aborted):
                handle.wait(5)
        with pytest.raises(ringcoll.InvalidArgument, match="closed"):
            world.barrier()
        return world.closed

    assert run_ranks(2, body)[0] is True
