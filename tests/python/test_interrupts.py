"""Signals in blocking calls of the main thread, handles that nobody keeps, and daemon threads that
are in a call when the interpreter ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ringcoll

# Long before any deadline of these tests (RINGCOLL_TIMEOUT_S is 20), late enough for a machine that
# does something else.
SOON = 8.0

TRANSPORTS = ["shm", "tcp"]


def mark(name: str) -> None:
    Path(f"mark.{name}").touch()


def until(name: str) -> None:
    while not Path(f"mark.{name}").exists():
        time.sleep(0.005)


def interrupted(job: Any, rank: int = 0, name: str = "waits", signals: int = 1) -> float:
    """Sends SIGINT to the rank once it is about to make its call, and it has probably begun."""
    job.wait_for(name)
    time.sleep(0.3)
    begin = time.monotonic()
    for _ in range(signals):
        os.kill(job.pids[rank], signal.SIGINT)
        time.sleep(0.2 if signals > 1 else 0)
    return begin


def raises_at_once(kind: type[BaseException], call: Callable[[], object], **match: Any) -> float:
    """How long it takes until the call raises; it says first that it is about to be made."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    mark("waits")
    begin = time.monotonic()
    with pytest.raises(kind, **match):
        call()
    took = time.monotonic() - begin
    mark("interrupted")
    return took


def good_values(job: Any) -> list[Any]:
    outcomes = job.join()
    text = "\n".join(outcome.output for outcome in outcomes)
    assert [outcome.error for outcome in outcomes] == [None] * len(outcomes), text
    assert [outcome.exit_code for outcome in outcomes] == [0] * len(outcomes), text
    return [outcome.value for outcome in outcomes]


COLLECTIVES: dict[str, Callable[[Any], object]] = {
    "small": lambda world: world.allreduce(np.ones(1, np.float32)),
    "large": lambda world: world.allreduce(np.ones(1 << 22, np.float32)),
    "barrier": lambda world: world.barrier(),
    "broadcast": lambda world: world.broadcast(np.ones(1), root=1),
    "split": lambda world: world.split([0, 1]),
}


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("connected", [True, False], ids=["connected", "first"])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_ctrl_c_ends_a_collective_on_all_ranks(start_ranks, name, connected, transport):
    call = COLLECTIVES[name]

    def body(world):
        if connected:
            world.allreduce(np.ones(10))
        if world.rank == 0:
            took = raises_at_once(KeyboardInterrupt, lambda: call(world))
        else:
            until("interrupted")
            took = 0.0
        begin = time.monotonic()
        with pytest.raises(
            ringcoll.Aborted, match=r"aborted by rank 0 .*interrupted in its"
        ) as heard:
            while True:  # what rank 0 had sent of its call may be all that this rank needs
                call(world)
        assert heard.value.rank == 0
        return took, time.monotonic() - begin

    job = start_ranks(2, body, env={"RINGCOLL_TRANSPORT": transport})
    interrupted(job)
    values = good_values(job)
    assert all(part < SOON for value in values for part in value), values


def test_a_rank_in_the_call_hears_of_it(start_ranks):
    """Rank 1 waits in the same call for rank 2, which never comes."""

    def body(world):
        if world.rank == 0:
            return raises_at_once(KeyboardInterrupt, world.barrier)
        if world.rank == 2:
            until("interrupted")
            until("heard")
            return 0.0
        begin = time.monotonic()
        with pytest.raises(ringcoll.Aborted, match=r"rank 0 .*interrupted in its barrier"):
            world.barrier()
        mark("heard")
        return time.monotonic() - begin

    job = start_ranks(3, body)
    interrupted(job)
    assert max(good_values(job)) < SOON


MESSAGES: dict[str, Callable[[Any], object]] = {
    "recv": lambda world: world.recv(np.zeros(4), 1),
    "recv from any": lambda world: world.recv(np.zeros(4), ringcoll.ANY_SOURCE),
    "send": lambda world: world.send(np.zeros(1 << 20), 1),
    "isend": lambda world: world.isend(np.zeros(1 << 20), 1).wait(),
    "irecv": lambda world: world.irecv(np.zeros(4), 1).wait(),
}


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("name", MESSAGES)
def test_ctrl_c_ends_a_message_alone(start_ranks, name, transport):
    started = name in ("isend", "irecv")

    def body(world):
        took = 0.0
        if world.rank == 0:
            took = raises_at_once(KeyboardInterrupt, lambda: MESSAGES[name](world))
        else:
            until("interrupted")
        if not started:  # what was started goes on, and would take or be the next message
            for sender in (0, 1):
                room = np.zeros(1 << 20)  # of one that had met the message that is withdrawn, too
                if world.rank == sender:
                    world.send(np.full(4, 3.0), 1 - sender)
                else:
                    assert world.recv(room, sender).bytes == 32
                    assert room[:4].tolist() == [3.0] * 4
        world.barrier()
        return took

    job = start_ranks(2, body, env={"RINGCOLL_TRANSPORT": transport})
    interrupted(job)
    assert max(good_values(job)) < SOON


def test_ctrl_c_ends_the_wait_for_a_handle_that_nobody_keeps(start_ranks):
    def body(world):
        if world.rank == 1:
            until("closed")
            return 0.0
        begin = time.monotonic()
        raises_at_once(KeyboardInterrupt, lambda: world.allreduce_async(np.ones(1000)).wait())
        world.close()
        mark("closed")
        return time.monotonic() - begin

    job = start_ranks(2, body)
    interrupted(job)
    assert max(good_values(job)) < SOON


def test_ctrl_c_ends_a_shrink(start_ranks):
    def body(world):
        if world.rank == 1:
            until("interrupted")
            return 0.0
        return raises_at_once(KeyboardInterrupt, world.shrink)

    job = start_ranks(2, body)
    interrupted(job)
    assert max(good_values(job)) < SOON


def test_ctrl_c_ends_a_close(start_ranks):
    """Which waits for a done callback, and that for the interrupt."""

    def body(world):
        if world.rank == 1:
            until("interrupted")
            return 0.0
        handle = world.allreduce_async(np.ones(1))
        handle.add_done_callback(lambda _: until("interrupted"))
        return raises_at_once(KeyboardInterrupt, world.close)

    job = start_ranks(2, body)
    interrupted(job)
    assert max(good_values(job)) < SOON


def test_a_second_ctrl_c_is_an_ordinary_one(start_ranks):
    def body(world):
        if world.rank == 1:
            until("interrupted")
            return 0.0
        begin = time.monotonic()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        mark("waits")
        try:
            world.barrier()
        except KeyboardInterrupt:
            with pytest.raises(KeyboardInterrupt):
                time.sleep(20)
        mark("interrupted")
        return time.monotonic() - begin

    job = start_ranks(2, body)
    interrupted(job)
    job.wait_for("waits")
    time.sleep(1)
    os.kill(job.pids[0], signal.SIGINT)
    assert max(good_values(job)) < SOON


@pytest.mark.parametrize("name", ["small", "split"])
def test_a_handler_that_returns_lets_the_call_go_on(start_ranks, name):
    def body(world):
        if world.rank == 1:
            until("handled")
        else:
            signal.signal(signal.SIGINT, lambda *_: mark("handled"))
            mark("waits")
        COLLECTIVES[name](world)
        return float(world.allreduce(np.ones(1))[0])

    job = start_ranks(2, body)
    interrupted(job)
    assert good_values(job) == [2.0, 2.0]


@pytest.mark.parametrize("name", ["small", "split"])
def test_what_a_handler_raises_is_raised(start_ranks, name):
    class Told(Exception):
        pass

    def tell(*_: object) -> None:
        raise Told("by a handler")

    def body(world):
        if world.rank == 1:
            until("told")
            return 0.0
        signal.signal(signal.SIGTERM, tell)
        mark("waits")
        begin = time.monotonic()
        with pytest.raises(Told, match="by a handler"):
            COLLECTIVES[name](world)
        mark("told")
        return time.monotonic() - begin

    job = start_ranks(2, body)
    job.wait_for("waits")
    time.sleep(0.3)
    os.kill(job.pids[0], signal.SIGTERM)
    assert max(good_values(job)) < SOON


def test_a_handler_may_abort_and_start_calls(start_ranks):
    def body(world):
        if world.rank == 1:
            until("aborted")
            return None
        refused = []

        def abort(*_: object) -> None:
            try:
                world.barrier()  # it would wait for the call that it has interrupted
            except ringcoll.InvalidArgument as error:
                refused.append(str(error))
            world.abort("enough")

        signal.signal(signal.SIGINT, abort)
        mark("waits")
        with pytest.raises(ringcoll.Aborted, match="enough"):
            world.allreduce(np.ones(1))
        mark("aborted")
        return len(refused)

    job = start_ranks(2, body)
    interrupted(job)
    assert good_values(job) == [1, None]


def test_other_threads_are_not_interrupted(start_ranks):
    """The main thread has the KeyboardInterrupt; the call of the other thread ends well."""

    def body(world):
        if world.rank == 1:
            until("interrupted")
            return float(world.allreduce(np.ones(1))[0])
        sums = []
        thread = threading.Thread(target=lambda: sums.append(world.allreduce(np.ones(1))[0]))
        thread.start()
        raises_at_once(KeyboardInterrupt, lambda: time.sleep(20))
        thread.join()
        return float(sums[0])

    job = start_ranks(2, body)
    interrupted(job)
    assert good_values(job) == [2.0, 2.0]


# Handles that nobody keeps.


def test_the_wait_for_a_handle_that_nobody_keeps_ends_after_its_timeout(run_ranks):
    def body(world):
        if world.rank == 1:
            until("passed")
            return None
        begin = time.monotonic()
        with pytest.raises(TimeoutError):
            world.allreduce_async(np.ones(4)).wait(timeout=0.5)
        took = time.monotonic() - begin
        mark("passed")
        return took

    took = run_ranks(2, body)[0]
    assert 0.5 <= took < SOON


def test_a_dropped_handle_keeps_its_tensors_until_the_call_has_ended(run_ranks):
    def body(world):
        freed = []

        class Watched(np.ndarray):
            def __del__(self):
                freed.append(threading.current_thread() is threading.main_thread())

        out = np.zeros(1000).view(Watched)
        x = np.full(1000, float(world.rank))
        if world.rank == 1:
            until("dropped")
            world.allreduce(x)
        else:
            world.allreduce_async(x, out=out)
            del out
            assert not freed
            mark("dropped")
        world.barrier()
        end = time.monotonic() + SOON
        while world.rank == 0 and not freed and time.monotonic() < end:
            time.sleep(0.01)
        return len(freed)

    assert run_ranks(2, body)[0] == 1


# Daemon threads. The script is a process of its own, whose interpreter ends in good order.

DAEMON = """
import sys, threading, time, numpy as np, ringcoll
rank, store, what = int(sys.argv[1]), sys.argv[2], sys.argv[3]
inside = threading.Event()
x = np.zeros(1000)
if what == "init":
    def serve():
        inside.set()
        ringcoll.init(rank, 3, store)       # the third never comes
else:
    world = ringcoll.init(rank, 2, store)
    def serve():
        inside.set()
        while True:
            if what == "recv":
                world.recv(x, ringcoll.ANY_SOURCE)
            elif what == "wait":
                world.irecv(x, ringcoll.ANY_SOURCE).wait()
            elif what == "wait with a limit":
                try:
                    world.irecv(x, ringcoll.ANY_SOURCE).wait(timeout=0.001)
                except TimeoutError:
                    pass
            elif what == "split":
                world.split([0, 1])
                time.sleep(0.001)
            elif what == "calls":
                world.allreduce(x)
            elif what == "errors":
                try:
                    world.recv(x, 1 - rank, timeout=0.001)
                except ringcoll.Error:
                    pass
            elif what == "callbacks":
                done = threading.Event()
                handle = world.isend(x[:1], rank)
                world.recv(x[:1], rank)
                handle.add_done_callback(lambda _: done.set())
                done.wait()
            else:
                assert what == "alone"
                if rank == 0:
                    world.allreduce(x)      # rank 1 is not in it
                time.sleep(0.001)
for _ in range(3 if what in ("recv", "wait", "callbacks", "errors") else 1):
    threading.Thread(target=serve, daemon=True).start()
inside.wait()
time.sleep(float(sys.argv[4]))
"""


@pytest.mark.parametrize(
    "what",
    [
        "recv",
        "wait",
        "wait with a limit",
        "split",
        "calls",
        "errors",
        "callbacks",
        "alone",
        "init",
    ],
)
def test_a_daemon_thread_in_a_call_does_not_abort_the_process(tmp_path, what):
    for trial, pause in enumerate((0.3, 0.0, 0.05)):
        store = tmp_path / f"store{trial}"
        store.mkdir()
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", DAEMON, str(rank), f"file://{store}", what, str(pause)],
                stderr=subprocess.PIPE,
                text=True,
                cwd=tmp_path,  # or -c would find the folder of sources
                env=os.environ | {"RINGCOLL_TIMEOUT_S": "20", "RINGCOLL_INTERFACE": "lo"},
            )
            for rank in range(2)
        ]
        said = [rank.communicate(timeout=60)[1] for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0, 0], said
