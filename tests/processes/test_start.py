"""Jobs that cannot start: every rank says at once which rank cannot, and why."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import time

import pytest

import ringcoll

NOBODY = 65534
# Long after all have heard.
PATIENCE_S = 60


@pytest.fixture
def tcp_store():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


def attempt(rank, size, store):
    """What a rank that does not start raises, and after how many seconds."""
    begin = time.monotonic()
    try:
        ringcoll.init(rank, size, store, timeout=PATIENCE_S).close()
    except Exception as error:
        return type(error).__name__, getattr(error, "rank", None), str(error), elapsed(begin)
    return "", None, "it started", elapsed(begin)


def elapsed(begin):
    return time.monotonic() - begin


def allow_no_thread():
    if os.geteuid() == 0:  # whom the limit does not hold
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))


@pytest.mark.parametrize("lacking", [0, 1, 2])
def test_a_rank_that_can_make_no_thread(start_ranks, tcp_store, lacking):
    def body(rank, size, store):
        if rank == lacking:
            allow_no_thread()
        return attempt(rank, size, tcp_store)

    outcomes = start_ranks(3, body, connect=False).join()
    for rank, outcome in enumerate(outcomes):
        name, blamed, text, seconds = outcome.value
        assert name == "TransportError", (rank, text)
        assert "pids.max" in text and "ulimit -u" in text, text
        assert seconds < 10
        if rank != lacking:
            assert blamed == lacking and f"rank {lacking} cannot start" in text


@pytest.mark.parametrize("kind", ["file", "tcp"])
@pytest.mark.parametrize("refusing", [0, 2])
def test_a_rank_that_refuses_its_own_knobs(start_ranks, tcp_store, refusing, kind):
    def body(rank, size, store):
        if rank == refusing:
            os.environ["RINGCOLL_SLOTS"] = "many"
        return attempt(rank, size, tcp_store if kind == "tcp" else store)

    outcomes = start_ranks(3, body, connect=False).join()
    for rank, outcome in enumerate(outcomes):
        name, blamed, text, seconds = outcome.value
        assert name == "InvalidArgument", (rank, text)
        assert 'RINGCOLL_SLOTS="many"' in text and "0 to 64" in text
        assert seconds < 10
        if rank != refusing:
            assert blamed == refusing and f"rank {refusing} cannot start" in text


def test_all_ranks_that_refuse_theirs_end_at_once(start_ranks):
    def body(rank, size, store):
        os.environ["RINGCOLL_SLOTS"] = "many"
        return attempt(rank, size, store)

    for outcome in start_ranks(3, body, connect=False).join():
        name, _, text, seconds = outcome.value
        assert (name, seconds < 10) == ("InvalidArgument", True), text


# ---- Networks ----

RANK = """
import sys, time, numpy, ringcoll
rank, size, store, patience = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], float(sys.argv[4])
begin = time.monotonic()
try:
    with ringcoll.init(rank, size, store, timeout=patience) as world:
        print("sum", float(world.allreduce(numpy.ones(100_000))[-1]))
except ringcoll.Error as error:
    print(type(error).__name__, round(time.monotonic() - begin, 1), error)
"""


class Namespaces:
    """Hosts that have a network of their own, with nothing in it but what is done there."""

    def __init__(self, folder):
        self._folder = folder
        (folder / "rank.py").write_text(RANK)
        user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        self._unshare = ["unshare", *user, "--net", "--uts", "--pid", "--fork", "--kill-child"]
        done = subprocess.run([*self._unshare, "true"], capture_output=True, check=False)
        if done.returncode != 0:
            pytest.skip("network namespaces are not allowed here")

    def start(self, host, ranks, size, prepare="", patience=20, **env):
        """Starts ranks of a host, after the shell has done ``prepare`` there."""
        store = self._folder / "store"
        store.mkdir(exist_ok=True)
        run = f'"$0" rank.py $rank {size} file://{store} {patience} > said.$rank 2> log.$rank &'
        script = f"hostname {host}\n{prepare}\nfor rank in {ranks}; do {run} done; wait"
        return subprocess.Popen(
            [*self._unshare, "sh", "-c", script, sys.executable],
            cwd=self._folder,
            env={**os.environ, "RINGCOLL_INTERFACE": "", **env},
        )

    def said(self, rank):
        return (self._folder / f"said.{rank}").read_text()


@pytest.fixture
def namespaces(tmp_path):
    return Namespaces(tmp_path)


def test_hosts_that_have_only_loopback_have_no_network_in_common(namespaces):
    hosts = [namespaces.start(f"h{r}", r, 2, "ip link set lo up", PATIENCE_S) for r in (0, 1)]
    for host in hosts:
        assert host.wait(50) == 0  # no card, no link that might come up
    for rank in (0, 1):
        text = namespaces.said(rank)
        assert text.startswith("TransportError"), text
        assert "rank 0 on h0 has lo 127.0.0.1/8" in text and "rank 1 on h1 has lo" in text
        assert "Loopback joins no two hosts" in text and "RINGCOLL_INTERFACE" in text


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_ranks_of_one_host_need_no_loopback(namespaces, transport):
    job = namespaces.start("h0", "0 1 2", 3, RINGCOLL_TRANSPORT=transport)
    assert job.wait(50) == 0
    assert [namespaces.said(rank) for rank in range(3)] == ["sum 3.0\n"] * 3


def test_a_link_that_comes_up_within_the_start_is_used(emulate, places, start_ranks):
    """It is down when the ranks come, so they have nothing but loopback."""
    cluster = emulate(2)
    for host in cluster.hosts:
        set_links(host, "down")

    def body(rank, size, store):
        world = ringcoll.init(rank, size, store, timeout=30)
        return world.stats()["network"]

    job = start_ranks(2, body, connect=False, hosts=places(cluster, 1, 1))
    time.sleep(2)
    for host in cluster.hosts:
        set_links(host, "up")
    for outcome in job.join():
        assert outcome.value and "lo" not in outcome.value.split("(")[1], outcome.output


def set_links(host, state):
    cards = "$(ls /sys/class/net | grep -v ^lo$)"
    script = f"for card in {cards}; do ip link set $card {state}; done"
    subprocess.run(host.command(["sh", "-c", script]), check=True)
