"""ringcoll's ranks over a real kernel RDMA device: results, proof that the bytes went through it,
and what happens when something is missing or breaks."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import ringcoll

pytestmark = pytest.mark.guest(cpus=2, timeout=400)

VERBS = {"RINGCOLL_TRANSPORT": "verbs"}
MIB = 1 << 20


def bytes_over_loopback() -> int:
    """What the interface that tcp would take has sent."""
    return int(Path("/sys/class/net/lo/statistics/tx_bytes").read_text())


@pytest.mark.parametrize(
    "size",
    [
        3,
        pytest.param(2, marks=pytest.mark.exhaustive),
        pytest.param(4, marks=pytest.mark.exhaustive),
    ],
)
def test_results_are_right_and_went_through_the_device(start_ranks, device, size):
    count = 300_001  # float32: several packets, slots and pieces

    def body(world):
        def numbers(rank):
            return (np.arange(count) * (rank + 1) % 1000).astype("f4")

        mine, all_of_them = numbers(world.rank), sum(numbers(r) for r in range(world.size))
        assert (world.allreduce(mine) == all_of_them).all()
        assert (world.broadcast(mine.copy(), root=1) == numbers(1)).all()
        gathered = world.allgather(mine)
        assert (gathered.reshape(world.size, -1)[world.rank] == mine).all()
        for small in (0, 1, 5, 100):
            assert (world.allreduce(np.full(small, 2.0)) == 2 * world.size).all()
        world.barrier()
        return world.stats()

    before = bytes_over_loopback()
    with device.counting() as moved:
        outcomes = start_ranks(size, body, env=VERBS).join(120)
    for outcome in outcomes:
        assert outcome.error is None, outcome.output
    payload = sum(outcome.value["bytes_sent"] for outcome in outcomes)
    assert payload > 4 * count * size
    assert device.packets_sent(moved) >= payload / 4096
    assert bytes_over_loopback() - before < payload / 10, "it went over TCP"


def test_a_tensor_that_comes_back_is_not_copied(start_ranks):
    """Registered where it lies: sent from there, and received there. Freed memory is forgotten."""

    def body(world):
        copied = []
        for turn in range(2):
            x, total = np.empty(3 * MIB, "f4"), np.empty(3 * MIB, "f4")  # mappings of their own
            for _ in range(3):
                x[:] = world.rank + turn
                before = world.stats()
                world.allreduce(x, "average", out=total)
                after = world.stats()
                assert (total == turn + (world.size - 1) / 2).all()
                names = ("bytes_packed", "bytes_unpacked")
                copied.append(sum(after[name] - before[name] for name in names))
            assert after["bytes_sent_zero_copy"] - before["bytes_sent_zero_copy"] == x.nbytes
            del x, total
        return copied

    # A ring sends every element as it lies; what is cheapest in an emulated machine may be another.
    ring = VERBS | {"RINGCOLL_ALGORITHM": "allreduce=ring"}
    for outcome in start_ranks(2, body, env=ring).join(120):
        assert outcome.error is None, outcome.output
        copied = outcome.value
        assert copied[0] > 0, "registered at once"
        assert copied[2] == copied[5] == 0


def test_a_killed_peer_is_named(start_ranks):
    def body(world):
        x = np.ones(2 * MIB, "f4")
        world.barrier()
        Path("mark.running").touch()
        try:
            while True:
                world.allreduce(x, "max", out=x)
        except ringcoll.Error as error:
            return type(error).__name__, error.rank, time.monotonic()

    job = start_ranks(3, body, env=VERBS)
    job.wait_for("running")
    time.sleep(0.5)
    killed = time.monotonic()
    job.kill(1, signal.SIGKILL)
    outcomes = job.join(60)
    for rank in (0, 2):
        name, lost, when = outcomes[rank].value
        assert (name, lost) == ("PeerLost", 1), outcomes[rank].output
        assert when - killed < 5, "a second on a machine that is not emulated"


def test_a_killed_peer_whose_children_live_on_is_named(start_ranks):
    """They were forked from a rank at work, with all that it had open and registered."""

    def body(world):
        x = np.ones(MIB, "f4")
        world.allreduce(x, "max", out=x)
        child = os.fork()
        if child == 0:
            time.sleep(300)
            os._exit(0)
        Path(f"child.{world.rank}").write_text(str(child))
        world.barrier()
        Path("mark.running").touch()
        try:
            while True:
                world.allreduce(x, "max", out=x)
        except ringcoll.Error as error:
            return type(error).__name__, error.rank, time.monotonic()
        finally:
            Path(f"mark.told{world.rank}").touch()
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)

    job = start_ranks(4, body, env=VERBS)
    job.wait_for("running", 120)
    time.sleep(0.5)
    killed = time.monotonic()
    job.kill(2)
    try:
        for rank in (0, 1, 3):  # while its child lives
            job.wait_for(f"told{rank}", 60)
    finally:
        os.kill(int((job.folder / "child.2").read_text()), signal.SIGKILL)
    outcomes = job.join(60)
    for rank in (0, 1, 3):
        name, lost, when = outcomes[rank].value
        assert (name, lost) == ("PeerLost", 2), outcomes[rank].output
        assert when - killed < 5, "a second on a machine that is not emulated"


def test_a_fork_does_no_harm(start_ranks):
    """As a data loader does: children that inherit the registered memory, with traffic going on."""

    def body(world):
        x = np.ones(MIB, "f4")
        children = []
        for turn in range(6):
            handle = world.allreduce_async(x, out=np.empty_like(x))
            child = os.fork()
            if child == 0:
                x[:] = 77  # a copy of its own
                os._exit(0)
            children.append(child)
            x[0] = turn  # written after the fork: whose page is it now?
            x[0] = 1
            assert (handle.wait(30) == world.size).all()
        assert all(os.waitpid(child, 0)[1] == 0 for child in children)
        return True

    outcomes = start_ranks(2, body, env=VERBS).join(120)
    assert all(outcome.value for outcome in outcomes), [o.output for o in outcomes]


def test_an_idle_job_survives_an_interface_that_is_down_for_a_while(
    start_ranks, in_guest, bring_up
):
    """Its own interface, for 2 s. What is posted meanwhile is another matter: docs/rdma.md."""
    if not in_guest:
        pytest.skip("an interface of the host is not taken down")

    def body(world):
        x = np.full(MIB, world.rank + 1, "f4")
        assert (world.allreduce(x) == 3).all()
        if world.rank == 0:
            Path("mark.idle").touch()
        while not Path("mark.back").exists():
            time.sleep(0.01)
        assert (world.allreduce(x) == 3).all()
        return True

    job = start_ranks(2, body, env=VERBS)
    job.wait_for("idle", 60)
    subprocess.run(["ip", "link", "set", "rdma0", "down"], check=True)
    time.sleep(2)
    bring_up("rdma0")
    (job.folder / "mark.back").touch()
    outcomes = job.join(60)
    assert all(outcome.value for outcome in outcomes), [outcome.output for outcome in outcomes]
    assert "port down [rxe0:1]" in outcomes[0].output, "heard on its own thread"


def test_who_connects_later_does_so_by_the_address_of_then(start_ranks, in_guest):
    """Neighbours on the ring are connected from the start; 0 and 2 of four ranks are not."""
    if not in_guest:
        pytest.skip("an interface of the host keeps its address")

    def body(world):
        if world.rank == 0:
            Path("mark.made").touch()
        while not Path("mark.moved").exists():
            time.sleep(0.01)
        counts = {0: [0, 0, MIB, 0], 2: [MIB, 0, 0, 0]}.get(world.rank, [0] * 4)
        got = world.alltoall(np.full(sum(counts), world.rank, "f4"), counts, counts)
        return got.size == sum(counts) and (got == 2 - world.rank).all()

    def address(what, host):
        subprocess.run(["ip", "address", what, f"10.77.0.{host}/24", "dev", "rdma0"], check=True)

    job = start_ranks(4, body, env=VERBS)
    job.wait_for("made", 60)
    address("del", 1)
    address("add", 101)
    try:
        (job.folder / "mark.moved").touch()
        outcomes = job.join(60)
    finally:
        address("del", 101)
        address("add", 1)
    for outcome in outcomes:
        assert outcome.error is None and outcome.value, outcome.output
    for rank in (0, 2):
        told = "has changed its address from 10.77.0.1 to 10.77.0.101"
        assert told in outcomes[rank].output


CAP_IPC_LOCK = 14
FEW_KIB = 64


def lock_little() -> None:
    """This process may lock 64 KiB, and has no privilege to lock more."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
    sets = (ctypes.c_uint32 * 6)()
    assert libc.capget(header, sets) == 0
    for place in (0, 1):  # effective, permitted
        sets[place] &= ~(1 << CAP_IPC_LOCK)
    assert libc.capset(header, sets) == 0
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (FEW_KIB << 10, FEW_KIB << 10))


REMEDY = r"(?s)may lock 64 KiB: raise the limit.*ulimit -l unlimited"


def test_too_little_memory_to_lock_is_said_before_data_flows(start_ranks):
    """By one of the ranks, to all of them."""

    def body(rank, size, store):
        if rank == 1:
            lock_little()
        with pytest.raises(ringcoll.TransportError, match=REMEDY) as caught:
            ringcoll.init(rank, size, store)
        return str(caught.value)

    outcomes = start_ranks(2, body, env=VERBS, connect=False).join(60)
    assert all("rank 1: RINGCOLL_TRANSPORT=verbs" in out.value for out in outcomes), outcomes


def doctor(**env):
    """What it finds with little memory to lock, by part."""
    done = subprocess.run(
        [sys.executable, "-m", "ringcoll", "doctor", "--json"],
        env=os.environ | env,
        capture_output=True,
        text=True,
        cwd="/",
        preexec_fn=_drop_and_lock_little,
        check=False,
    )
    found = json.loads(done.stdout)
    assert (done.returncode == 0) == found["can_run"]
    return found["can_run"], {row["part"]: row for row in found["findings"]}


def _drop_and_lock_little() -> None:
    """For a program of root, which would get its privileges back."""
    assert ctypes.CDLL(None).prctl(24, CAP_IPC_LOCK) == 0  # PR_CAPBSET_DROP
    lock_little()


def test_doctor_says_how_to_lock_more(device):
    can_run, parts = doctor()
    assert can_run, "by tcp"
    assert (
        parts["limit memlock"]["status"] == "note" and "64 KiB" in parts["limit memlock"]["detail"]
    )
    for word in ("not usable", "may lock 64 KiB", "ulimit -l unlimited"):
        assert word in parts["transport verbs"]["detail"]
    port = parts[f"RDMA {device.name}:{device.port}"]["detail"]
    for word in ("active", "MTU 4096", "chosen: with gid"):
        assert word in port
    assert "after 3.8 s" in parts["RDMA queue pairs"]["detail"]
    assert "may be read and written" in parts["/dev/infiniband/uverbs0"]["detail"]
    can_run, parts = doctor(RINGCOLL_TRANSPORT="verbs")
    assert not can_run and parts["transport verbs"]["status"] == "failed"


@pytest.mark.parametrize(
    ("knobs", "pattern"),
    [
        ({"RINGCOLL_DEVICES": "mlx5_7"}, "mlx5_7"),
        ({"RINGCOLL_GID_INDEX": "200"}, "200"),
        ({"RINGCOLL_DEVICES": "rxe0:9"}, "rxe0"),
    ],
)
def test_what_cannot_be_is_said_before_data_flows(start_ranks, knobs, pattern):
    def body(rank, size, store):
        with pytest.raises(ringcoll.TransportError, match=pattern) as caught:
            ringcoll.init(rank, size, store)
        return str(caught.value)

    outcomes = start_ranks(2, body, env={**VERBS, **knobs}, connect=False).join(60)
    assert all("RINGCOLL_TRANSPORT=verbs" in outcome.value for outcome in outcomes), outcomes
