"""Ranks that are killed, and others that go on without them."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import ringcoll

TRANSPORTS = ["shm", "tcp"]


def goes_on(world):
    """Steps of training whose communicator is replaced by the rest of it when ranks are lost; at
    the end the size and the sum of each of them."""
    x = np.ones(1 << 18, "f4")
    now, seen = world, []
    while not Path("mark.over").exists():
        try:
            total = now.allreduce(x)
            if not seen or seen[-1] != (now.size, total[0]):
                seen.append((now.size, float(total[0])))
            Path(f"mark.at{now.size}").touch()
        except ringcoll.PeerLost:
            now = now.shrink()
            continue
        over = np.array([Path("mark.over").exists()], "u1")
        try:
            if now.allreduce(over, "max")[0]:
                break
        except ringcoll.PeerLost:
            now = now.shrink()
    return seen


def went_on(outcomes, killed):
    """Those who were not killed, together, and with the right sums before and after."""
    size = len(outcomes)
    left = [rank for rank in range(size) if rank not in killed]
    for rank in killed:
        assert outcomes[rank].exit_code == -signal.SIGKILL
    for rank in left:
        seen = outcomes[rank].value
        assert seen is not None, outcomes[rank].output
        assert seen[-1] == (len(left), float(len(left))), seen
        assert all(size == total for size, total in seen), seen
    # Whoever was last in the first step may have heard of the loss in it.
    assert any((size, float(size)) in outcomes[rank].value for rank in left)


@pytest.mark.parametrize(("transport", "size"), [("shm", 8), ("tcp", 6)])
def test_ranks_that_are_killed_are_done_without(start_ranks, transport, size):
    """One, and then two at once that are not side by side, and rank 0 among them."""
    job = start_ranks(size, goes_on, env={"RINGCOLL_TRANSPORT": transport})
    job.wait_for(f"at{size}")
    job.kill(3)
    job.wait_for(f"at{size - 1}")
    time.sleep(0.1)
    job.kill(0)
    job.kill(4)
    job.wait_for(f"at{size - 3}")
    (job.folder / "mark.over").touch()
    went_on(job.join(30), killed=[0, 3, 4])


# Of ranks that die at once, some were joined to nobody who lives: whole hosts, and neighbours in
# the ring.
DEATHS = {
    "a host of two": ("aaabbb", [3, 4, 5]),
    "the larger host": ("aabbbbb", [2, 3, 4, 5, 6]),
    "all but one": ("abbbbb", [1, 2, 3, 4, 5]),
    "three of four": ("aaaa", [1, 3, 2]),
    "neighbours": ("aaaaaa", [1, 2, 3]),
    "neighbours at the end": ("aaaaaa", [5, 0]),
}


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("hosts_and_victims", DEATHS.values(), ids=DEATHS)
def test_ranks_that_die_together_are_done_without(start_ranks, hosts_and_victims, transport):
    hosts, victims = hosts_and_victims

    def body(rank, size, store):
        os.environ["RINGCOLL_HOSTID"] = hosts[rank]
        world = ringcoll.init(rank, size, store)
        world.allreduce(np.ones(100_000, "f4"))
        Path(f"mark.{rank}").touch()
        while not Path("mark.dead").exists():
            time.sleep(0.005)
        begin = time.monotonic()
        rest = world.shrink()
        took = time.monotonic() - begin
        return took, rest.size, float(rest.allreduce(np.ones(1))[0])

    env = {"RINGCOLL_TRANSPORT": transport, "RINGCOLL_ALGORITHM": "allreduce=ring"}
    job = start_ranks(len(hosts), body, env=env, connect=False)
    for rank in range(len(hosts)):
        job.wait_for(str(rank))
    for rank in victims:
        job.kill(rank)
    (job.folder / "mark.dead").touch()
    outcomes = job.join(30)
    left = [rank for rank in range(len(hosts)) if rank not in victims]
    for rank in left:
        assert outcomes[rank].value, outcomes[rank].output
        took, size, total = outcomes[rank].value
        assert (size, total) == (len(left), len(left))
        assert took < 5
    warned = "not more than half" in outcomes[left[0]].output
    elsewhere = any(hosts[rank] != hosts[left[0]] for rank in victims)
    assert warned == (elsewhere and 2 * len(left) <= len(hosts)), outcomes[left[0]].output


class Rendezvous(BaseHTTPRequestHandler):
    """horovodrun's server, in short."""

    values: ClassVar[dict[str, bytes]] = {}

    def do_PUT(self):
        self.values[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200)

    def do_GET(self):
        found = self.values.get(self.path)
        self._answer(404 if found is None else 200, found or b"")

    def do_DELETE(self):
        self.values.pop(self.path, None)
        self._answer(200)

    def _answer(self, status, body=b""):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class OfAServer:
    """A store that ends when its server is stopped."""

    def __init__(self):
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Rendezvous)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"horovod://127.0.0.1:{self._server.server_port}/{time.monotonic_ns()}"

    def end(self, _):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class OfRankZero:
    """A store that ends with that rank, which serves it."""

    def __init__(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.url = f"tcp://127.0.0.1:{probe.getsockname()[1]}"

    def end(self, job):
        job.kill(0)


class OfAFolder:
    """A store that ends when its files are removed."""

    url = None  # of the job's folder

    def end(self, job):
        shutil.rmtree(job.folder / "store")


@pytest.mark.parametrize("kind", [OfAFolder, OfRankZero, OfAServer])
def test_nobody_needs_the_store_any_more(start_ranks, kind):
    """It is where the ranks met. Those who are left go on without it, twice."""
    store = kind()

    def body(rank, size, url):
        return goes_on(ringcoll.init(rank, size, store.url or url))

    job = start_ranks(5, body, connect=False)
    job.wait_for("at5")
    store.end(job)
    killed = [0, 3]
    job.kill(0)
    job.wait_for("at4")
    job.kill(3)
    job.wait_for("at3")
    (job.folder / "mark.over").touch()
    went_on(job.join(30), killed)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_rank_that_is_killed_while_others_shrink(start_ranks, transport):
    """Whoever ends while the others agree is left out, or lost to the first call."""

    def body(world):
        world.allreduce(np.ones(4))
        Path("mark.running").touch()
        now = world
        while now.size > 2:
            try:
                now.allreduce(np.ones(4))
            except ringcoll.PeerLost:
                Path("mark.lost").touch()
                now = now.shrink()
        return [float(now.allreduce(np.ones(1))[0]) for _ in range(3)]

    job = start_ranks(4, body, env={"RINGCOLL_TRANSPORT": transport})
    job.wait_for("running")
    job.kill(1)
    job.wait_for("lost")
    job.kill(2)
    outcomes = job.join(30)
    for rank in (0, 3):
        assert outcomes[rank].value == [2.0] * 3, outcomes[rank].output


def test_a_shrink_that_came_too_late_is_gone_on_with(start_ranks):
    """The others count on what a rank has said before its deadline passed."""

    def body(world):
        world.allreduce(np.ones(4))
        timeouts = 0
        if world.rank == 0:
            while not Path("mark.timeout").exists():
                time.sleep(0.01)
        while True:
            try:
                rest = world.shrink()
                break
            except ringcoll.Timeout as error:
                assert error.rank == 0
                timeouts += 1
                Path("mark.timeout").touch()
        return timeouts > 0, float(rest.allreduce(np.ones(1))[0])

    outcomes = start_ranks(3, body, env={"RINGCOLL_TIMEOUT_S": "1.5"}).join(30)
    assert outcomes[0].value == (False, 3.0), outcomes[0].output
    for rank in (1, 2):
        assert outcomes[rank].value, outcomes[rank].output
        assert outcomes[rank].value[1] == 3.0
    assert outcomes[1].value[0] or outcomes[2].value[0]


def test_a_stopped_rank_is_named(start_ranks):
    """It is not lost, and does not come: whoever shrinks says so at the deadline."""

    def body(world):
        world.allreduce(np.ones(4))
        Path(f"mark.running{world.rank}").touch()
        while not Path("mark.stopped").exists():
            time.sleep(0.01)
        with pytest.raises(ringcoll.Timeout, match="rank 1") as caught:
            world.shrink()
        Path(f"mark.timeout{world.rank}").touch()
        return caught.value.rank

    job = start_ranks(3, body, env={"RINGCOLL_TIMEOUT_S": "2"})
    for rank in range(3):  # each has its result, for which it needs the others
        job.wait_for(f"running{rank}")
    job.kill(1, signal.SIGSTOP)
    (job.folder / "mark.stopped").touch()
    job.wait_for("timeout0")
    job.wait_for("timeout2")
    job.kill(1)
    outcomes = job.join(20)
    assert [outcomes[rank].value for rank in (0, 2)] == [1, 1], outcomes[0].output
