"""``Handle.add_done_callback``: who is called when, and that neither the GIL nor the interpreter's
end is in the way."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref

import numpy as np
import pytest

import ringcoll


def test_the_handle_has_ended(run_ranks):
    def body(world):
        seen = []

        def note(handle):
            seen.append((handle, handle.done(), handle.wait()[0], threading.get_ident()))

        told = world.split([0, 1])  # by which rank 1 lets rank 0 go first
        if world.rank == 1:
            told.barrier()
        handle = world.allreduce_async(np.ones(3))
        handle.add_done_callback(note)
        if world.rank == 0:
            assert not seen
            told.barrier()
        handle.wait()
        ((same, done, value, _),) = seen
        assert same is handle and done and value == 2
        handle.add_done_callback(note)  # at once
        assert seen[1] == (handle, True, 2, threading.get_ident())

    run_ranks(2, body)


def test_ctrl_c_in_a_callback_reaches_the_thread_that_waits(run_ranks):
    """Which is the one that calls it, unless a thread of the library was first."""

    def body(world):
        def interrupt(_):
            os.kill(os.getpid(), signal.SIGINT)

        told = world.split([0, 1])
        if world.rank == 1:
            told.barrier()
        handle = world.barrier_async()
        interrupted = False
        try:
            if world.rank == 0:
                handle.add_done_callback(interrupt)
                told.barrier()
            handle.wait()
            time.sleep(0.1)
        except KeyboardInterrupt:
            interrupted = True
        world.barrier()
        return interrupted

    assert run_ranks(2, body) == [True, False]


def test_all_are_called_in_their_order_and_what_they_raise_is_logged(run_ranks):
    def body(world):
        seen, records = [], []
        handler = logging.Handler()
        handler.emit = records.append
        logging.getLogger("ringcoll").addHandler(handler)

        def fail(_):
            seen.append("fail")
            raise RuntimeError("of the caller")

        def add_another(handle):
            seen.append("add")
            handle.add_done_callback(lambda _: seen.append("added"))

        told = world.split([0, 1])
        if world.rank == 1:  # for whom it would be over before all are added
            told.barrier()
            world.barrier()
            return
        handle = world.barrier_async()
        for fn in (fail, add_another, lambda _: seen.append("last")):
            handle.add_done_callback(fn)
        told.barrier()
        handle.wait()
        assert seen == ["fail", "add", "last", "added"]
        (record,) = records
        assert "done callback" in record.getMessage() and "fail" in record.getMessage()
        assert str(record.exc_info[1]) == "of the caller"
        handle.add_done_callback(fail)
        assert len(records) == 2

    run_ranks(2, body)


def test_calls_that_fail_or_never_begin_have_theirs(run_ranks):
    def body(world):
        errors = []

        def note(handle):
            with pytest.raises(ringcoll.Error) as caught:
                handle.wait()
            errors.append(type(caught.value))

        if world.rank == 1:
            time.sleep(1)
            return None
        handles = [world.allreduce_async(np.ones(3)) for _ in range(3)]
        for handle in handles:
            handle.add_done_callback(note)
        time.sleep(0.1)
        world.close()
        return errors

    assert run_ranks(2, body)[0] == [ringcoll.Aborted] * 3


def test_a_callback_starts_the_next_call(run_ranks):
    def body(world):
        values = []
        over = threading.Event()

        def again(handle):
            values.append(float(handle.wait()[0]))
            if len(values) == 200:
                over.set()
            else:
                world.allreduce_async(np.full(10, float(len(values)))).add_done_callback(again)

        world.allreduce_async(np.zeros(10)).add_done_callback(again)
        assert over.wait(30)
        assert values == [2.0 * number for number in range(200)]

    run_ranks(2, body)


def test_a_handle_dropped_in_a_callback_keeps_its_tensors(run_ranks):
    class Array(np.ndarray):
        pass

    def body(world):
        out = np.zeros(1_000_000)
        alive = []

        def start(_):
            x = np.ones(1_000_000).view(Array)
            alive.append(weakref.ref(x))
            world.allreduce_async(x, out=out)

        told = world.split([0, 1])
        if world.rank == 1:
            told.barrier()
        first = world.barrier_async()
        first.add_done_callback(start)
        if world.rank == 0:
            told.barrier()
        first.wait()
        gc.collect()
        world.barrier_async().wait()  # after it
        assert (out == 2).all()
        assert alive[0]() is None

    run_ranks(2, body)


def test_what_would_wait_for_the_callback_itself_is_refused(run_ranks):
    def body(world):
        refused = []

        def block(_):
            for wait in (world.barrier, world.allreduce_async(np.ones(1)).wait):
                try:
                    wait()
                except ringcoll.InvalidArgument as error:
                    refused.append("callback" in str(error))

        told = world.split([0, 1])
        for first in (
            0,
            1,
        ):  # the other comes later, or it would be over before the callback is there
            if world.rank == first:
                handle = world.barrier_async()
                handle.add_done_callback(block)
                told.barrier()
                handle.wait()
            else:
                told.barrier()
                world.barrier()
                world.allreduce(np.ones(1))
            world.barrier()
        return refused

    assert run_ranks(2, body) == [[True, True]] * 2


def test_a_wait_that_is_refused_ends_nothing(run_ranks):
    """The handle is as good as before: not done, its tensors alive, and it ends well."""

    class Array(np.ndarray):
        pass

    def body(world):
        seen = {}

        def wait(_):
            other = seen["other"]
            with pytest.raises(ringcoll.InvalidArgument, match="callback"):
                other.wait()
            with pytest.raises(ringcoll.InvalidArgument, match="callback"):
                other.wait(1)
            seen["done"] = other.done()
            del other
            gc.collect()
            seen["alive"] = alive() is not None

        told = world.split([0, 1])
        if world.rank == 1:
            told.barrier()
            world.barrier()  # rank 0's callback finds the other call in flight
            told.barrier()
            world.allreduce(np.ones(1 << 20))
            return None
        x, out = np.ones(1 << 20).view(Array), np.zeros(1 << 20)
        alive = weakref.ref(x)
        first = world.barrier_async()
        first.add_done_callback(wait)
        seen["other"] = world.allreduce_async(x, out=out)
        del x
        told.barrier()
        first.wait()
        told.barrier()
        assert (seen.pop("other").wait() == 2).all() and (out == 2).all()
        return seen

    assert run_ranks(2, body)[0] == {"done": False, "alive": True}


@pytest.mark.parametrize("kind", ["send", "recv"])
def test_a_wait_for_a_message_that_is_refused_ends_nothing(run_ranks, kind):
    def body(world):
        seen = []
        told = world.split([0, 1])
        x = np.full(1 << 18, 1.0 + world.rank)
        if world.rank == 0:
            other = world.isend(x, 1, 5) if kind == "send" else world.irecv(x, 1, 5)

            def wait(_):
                with pytest.raises(ringcoll.InvalidArgument, match="callback"):
                    other.wait()
                seen.append(other.done())

            first = world.barrier_async()
            first.add_done_callback(wait)
            told.barrier()  # it has not ended before
            first.wait()
            world.barrier()
            other.wait()
        else:
            told.barrier()
            world.barrier()
            world.barrier()
            world.recv(x, 0, 5) if kind == "send" else world.send(x, 0, 5)
        world.barrier()
        return seen, float(x[-1])

    wanted = 1.0 if kind == "send" else 2.0
    assert run_ranks(2, body) == [([False], wanted), ([], wanted)]


def test_many_threads(run_ranks):
    """Each with a communicator of its own, whose callbacks want the GIL all the time."""

    def body(world):
        subs = [world.split([0, 1]) for _ in range(6)]
        counts = [0] * len(subs)

        def work(index):
            def count(_):
                counts[index] += 1

            for _ in range(50):
                handle = subs[index].allreduce_async(np.ones(10))
                for _ in range(3):
                    handle.add_done_callback(count)
                handle.wait()

        threads = [threading.Thread(target=work, args=(index,)) for index in range(len(subs))]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            sum(range(1000))
        for thread in threads:
            thread.join()
        for sub in subs:
            sub.close()
        return counts

    assert run_ranks(2, body) == [[150] * 6] * 2


def test_the_last_reference_may_go_in_a_callback(run_ranks):
    def body(world):
        for close in (False, True) * 3:
            sub = world.split([world.rank])
            handle = sub.barrier_async()

            def let_go(handle, close=close):
                time.sleep(0.05)
                if close:
                    handle._communicator.close()

            handle.add_done_callback(let_go)
            del sub, handle
        world.barrier()
        return float(world.allreduce(np.ones(1))[0])

    assert run_ranks(2, body) == [2, 2]


BEGIN = """
    import atexit, os, signal, sys, threading, time
    import ringcoll
    from ringcoll import _core

    rank1 = []
    other = threading.Thread(
        target=lambda: rank1.append(_core.Comm(1, 2, "local://at-exit", "world"))
    )
    other.start()
    world = ringcoll.init(0, 2, "local://at-exit")
    other.join()
    alone = ringcoll.Communicator(_core.Comm(0, 1, "local://alone"), "alone")

"""


def run_program(path, text):
    path.write_text(textwrap.dedent(BEGIN) + textwrap.dedent(text))
    return subprocess.run(
        [sys.executable, path],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=path.parent,
        env=os.environ | {"RINGCOLL_INTERFACE": "lo"},
    )


def test_forks_in_and_beside_a_callback(tmp_path):
    """Neither child has the thread that is in the callback, or waits for it at its end."""
    done = run_program(
        tmp_path / "forks.py",
        """
        inside, go = threading.Event(), threading.Event()

        def status_of(child):
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

        def fork_and_wait(_):
            child = os.fork()
            if child == 0:
                os._exit(3)
            print("in", status_of(child), flush=True)  # a child would say it again
            inside.set()
            go.wait()

        handle = world.barrier_async()
        handle.add_done_callback(fork_and_wait)  # before it can end: nobody waits for it
        ringcoll.Communicator(rank1[0], "one").barrier_async()
        inside.wait()
        child = os.fork()
        if child == 0:
            sys.exit(4)
        print("beside", status_of(child))
        go.set()
        """,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == ["in 3", "beside 4", ""], done.stderr


@pytest.mark.parametrize("traced", [False, True])
def test_a_fork_while_a_thread_begins_a_callback(tmp_path, traced):
    """The child has none of the locks that the thread holds as it begins and ends a callback. Where
    memory is traced, the thread waits for the GIL with such a lock, and frees with another."""
    done = run_program(
        tmp_path / "forks.py",
        ("\nimport tracemalloc\ntracemalloc.start()\n" if traced else "")
        + textwrap.dedent("""
        def again(_):
            alone.barrier_async().add_done_callback(again)

        def ends(child, seconds):
            end = time.monotonic() + seconds
            while os.waitpid(child, os.WNOHANG) == (0, 0):
                if time.monotonic() > end:
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                    return False
                time.sleep(0.0002)
            return True

        for _ in range(4):
            again(None)
        for number in range(500):
            child = os.fork()
            if child == 0:
                os._exit(0)
            if not ends(child, 10):
                print("child", number, "hangs", flush=True)
                break
        else:
            print("all have ended", flush=True)
        os._exit(0)
        """),
    )
    assert done.stdout == "all have ended\n", done.stdout + done.stderr


AT_EXIT = {
    "callbacks without end": """
        def again(handle):
            alone.barrier_async().add_done_callback(again)

        again(None)
    """,
    "a callback that is in Python": """
        for _ in range(20):
            alone.barrier_async().add_done_callback(lambda _: sum(range(1_000_000)))
        time.sleep(0.05)
    """,
    "a call that shutdown() ends": """
        handle = world.barrier_async()
        handle.add_done_callback(lambda handle: print("told", handle.done(), flush=True))
    """,
    "a call that nothing ends": """
        one = ringcoll.Communicator(rank1[0], "one")
        one.barrier_async().add_done_callback(lambda _: print("not to be told"))
    """,
}


@pytest.mark.parametrize("case", AT_EXIT)
def test_the_interpreter_ends(tmp_path, case):
    for _ in range(5):
        done = run_program(tmp_path / "at_exit.py", AT_EXIT[case])
        assert done.returncode == 0, done.stderr
        assert "Error" not in done.stderr and "Fatal" not in done.stderr, done.stderr
        assert done.stdout == ("told True\n" if "shutdown" in case else "")
