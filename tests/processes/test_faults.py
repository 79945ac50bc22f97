"""Processes that die, stop, lie or never come: a clear error that names them, in time, and nothing
left behind."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import ringcoll

TRANSPORTS = ["shm", "tcp"]
LARGE = 16 << 20  # float32: a collective that takes long enough to be in the middle of


def names_in(folder: str | Path) -> set[str]:
    return {path.name for path in Path(folder).iterdir()}


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path):
    shared = names_in("/dev/shm")
    yield
    # Semaphores are those of other programs of this machine: multiprocessing's.
    new = {name for name in names_in("/dev/shm") - shared if not name.startswith("sem.")}
    assert new == set()
    expected = re.compile(r"job\d|store|job\.py|output\.\d|mark\.\w+")
    left = [path for path in tmp_path.rglob("*") if not expected.fullmatch(path.name)]
    assert left == []


def sum_for_ever(world):
    """Until an error; its class, rank and text, and when it came."""
    x = np.ones(LARGE, "f4")
    world.barrier()
    Path("mark.running").touch()
    try:
        while True:
            world.allreduce(x, "max", out=x)
    except ringcoll.Error as error:
        return type(error).__name__, error.rank, str(error), time.monotonic()


def shape_of_error(outcome):
    assert outcome.value is not None, outcome.output
    return outcome.value[:2]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("victim", [0, 1])
def test_sigkill_in_the_middle(start_ranks, transport, victim):
    job = start_ranks(4, sum_for_ever, env={"RINGCOLL_TRANSPORT": transport})
    job.wait_for("running")
    time.sleep(0.3)
    killed = time.monotonic()
    job.kill(victim)
    outcomes = job.join(20)
    assert outcomes[victim].exit_code == -signal.SIGKILL
    for rank in {0, 1, 2, 3} - {victim}:
        assert shape_of_error(outcomes[rank]) == ("PeerLost", victim), outcomes[rank].output
        assert f"rank {victim}" in outcomes[rank].value[2]
        assert outcomes[rank].value[3] - killed < 1.0


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_sigkill_while_the_others_are_idle(start_ranks, transport):
    def body(world):
        world.allreduce(np.ones(10))
        Path("mark.idle").touch()
        while not Path("mark.killed").exists():
            time.sleep(0.01)
        begin = time.monotonic()
        with pytest.raises(ringcoll.PeerLost, match="rank 2") as caught:
            for _ in range(100):
                world.allreduce(np.ones(10))
                time.sleep(0.01)
        assert caught.value.rank == 2
        return time.monotonic() - begin

    job = start_ranks(3, body, env={"RINGCOLL_TRANSPORT": transport})
    job.wait_for("idle")
    time.sleep(0.1)
    job.kill(2)
    (job.folder / "mark.killed").touch()
    outcomes = job.join(20)
    for rank in (0, 1):
        assert outcomes[rank].value is not None and outcomes[rank].value < 1.0, outcomes[
            rank
        ].output


@contextlib.contextmanager
def forked():
    """A child of os.fork(), which has all that this process had open."""
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    try:
        yield [child]
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@contextlib.contextmanager
def by_subprocess():
    """Another program, which keeps what is not closed on exec."""
    with subprocess.Popen(["sleep", "60"], close_fds=False) as child:
        try:
            yield [child.pid]
        finally:
            child.kill()


@contextlib.contextmanager
def by_multiprocessing():
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    child.start()
    try:
        yield [child.pid]
    finally:
        child.kill()
        child.join()


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("with_children", [forked, by_subprocess, by_multiprocessing])
def test_sigkill_of_a_rank_whose_children_live_on(start_ranks, transport, with_children):
    """Begun by a rank at work, they had what it had open; while they live its death is told as
    soon as without them."""

    def body(world):
        world.allreduce(np.ones(10))
        with with_children() as children:
            Path(f"child.{world.rank}").write_text(" ".join(map(str, children)))
            told = sum_for_ever(world)
            Path(f"mark.told{world.rank}").touch()
            return told

    job = start_ranks(4, body, env={"RINGCOLL_TRANSPORT": transport})
    job.wait_for("running")
    time.sleep(0.3)
    killed = time.monotonic()
    job.kill(2)
    children = [int(pid) for pid in (job.folder / "child.2").read_text().split()]
    try:
        for rank in (0, 1, 3):
            job.wait_for(f"told{rank}", 10)
        assert children and all(is_alive(child) for child in children)
    finally:
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        for file in job.folder.glob("child.*"):
            file.unlink()
    outcomes = job.join(20)
    for rank in (0, 1, 3):
        assert shape_of_error(outcomes[rank]) == ("PeerLost", 2), outcomes[rank].output
        assert outcomes[rank].value[3] - killed < 1.0


def is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_groups_without_the_lost_rank_go_on(start_ranks, transport):
    """With collectives, of which some are in flight when it is killed; groups with it fail."""

    def body(world):
        rest = world.split([3, 0, 2] if world.rank != 1 else [])
        pair = world.split([0, 1] if world.rank < 2 else [2, 3])
        x = np.ones(LARGE >> 5, "f4")
        world.barrier()
        Path("mark.running").touch()
        if world.rank == 1:
            time.sleep(60)
        after, lost = 0, None
        while rest.allreduce(np.array([after]), "min")[0] < 10:
            handle = rest.allreduce_async(x)
            assert (rest.allreduce(2 * x) == 6).all()
            assert (handle.wait() == 3).all()
            assert np.array_equal(rest.allgather(np.array([world.rank])), [3, 0, 2])
            if world.rank > 1:
                assert pair.allreduce(np.array([world.rank]))[0] == 5
            try:
                if lost is None:
                    world.allreduce(np.ones(10))
            except ringcoll.PeerLost as error:
                lost = error.rank
            after += Path("mark.killed").exists()
        if world.rank == 0:
            with pytest.raises(ringcoll.PeerLost, match="rank 1"):
                pair.allreduce(np.ones(1))
        return lost

    job = start_ranks(4, body, env={"RINGCOLL_TRANSPORT": transport})
    job.wait_for("running")
    time.sleep(0.3)
    job.kill(1)
    (job.folder / "mark.killed").touch()
    outcomes = job.join(30)
    assert outcomes[1].exit_code == -signal.SIGKILL
    for rank in (0, 2, 3):
        assert outcomes[rank].value == 1, outcomes[rank].output


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_sigstop_is_a_timeout_that_names_the_rank(start_ranks, transport):
    job = start_ranks(
        3, sum_for_ever, env={"RINGCOLL_TRANSPORT": transport, "RINGCOLL_TIMEOUT_S": "1.5"}
    )
    job.wait_for("running")
    time.sleep(0.3)
    stopped = time.monotonic()
    job.kill(1, signal.SIGSTOP)
    time.sleep(4)
    job.kill(1, signal.SIGCONT)  # hears of it when it wakes
    outcomes = job.join(20)
    for rank in (0, 2):
        assert shape_of_error(outcomes[rank]) == ("Timeout", 1), outcomes[rank].output
        assert "rank 1" in outcomes[rank].value[2]
        assert 1.0 < outcomes[rank].value[3] - stopped < 3.9
    assert outcomes[1].value is not None and outcomes[1].value[0] in ("Timeout", "PeerLost"), (
        outcomes[1].output
    )


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_job_that_is_stopped_as_a_whole_goes_on(start_ranks, transport):
    def body(world):
        x = np.ones(LARGE, "f4")
        world.barrier()
        Path("mark.running").touch()
        calls = 0
        while not world.allreduce(np.array([Path("mark.resumed").exists()]), "max")[0]:
            world.allreduce(x, "max", out=x)
            calls += 1
        return calls

    job = start_ranks(3, body, env={"RINGCOLL_TRANSPORT": transport, "RINGCOLL_TIMEOUT_S": "1.5"})
    job.wait_for("running")
    time.sleep(0.3)
    for number, pause in ((signal.SIGSTOP, 2.5), (signal.SIGCONT, 0.5)):
        for rank in range(3):
            job.kill(rank, number)
        time.sleep(pause)
    (job.folder / "mark.resumed").touch()
    outcomes = job.join(20)
    for outcome in outcomes:
        assert outcome.error is None and outcome.value > 0, outcome.output
    assert len({outcome.value for outcome in outcomes}) == 1


def test_survivors_begin_again(start_ranks):
    def body(rank, size, store):
        world = ringcoll.init(rank, size, store)
        name, lost, _, _ = sum_for_ever(world)
        assert (name, lost) == ("PeerLost", 0)
        ringcoll.shutdown()
        return float(
            ringcoll.init(rank - 1, size - 1, store, name="survivors").allreduce(np.ones(1))[0]
        )

    job = start_ranks(3, body, connect=False)
    job.wait_for("running")
    time.sleep(0.2)
    job.kill(0)
    outcomes = job.join(30)
    assert [outcome.value for outcome in outcomes[1:]] == [2.0, 2.0], outcomes[1].output


def failing_init(*arguments, seconds=8.0, **options):
    """The error of an init that fails in time."""
    begin = time.monotonic()
    with pytest.raises(ringcoll.Error) as caught:
        ringcoll.init(*arguments, **options)
    assert time.monotonic() - begin < seconds
    return type(caught.value).__name__, str(caught.value)


def test_a_wrong_secret(run_ranks):
    def body(rank, size, store):
        os.environ["RINGCOLL_SECRET"] = "the right one" if rank == 0 else "a guess"
        return failing_init(rank, size, store)

    errors = run_ranks(2, body, connect=False, env={"RINGCOLL_TIMEOUT_S": "3"})
    assert any("secret" in text for _, text in errors), errors


def test_the_right_secret_over_tcp(run_ranks):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def body(rank, size, store):
        return float(ringcoll.init(rank, size, f"tcp://127.0.0.1:{port}").allreduce(np.ones(1))[0])

    assert run_ranks(2, body, connect=False, env={"RINGCOLL_SECRET": "s3cret"}) == [2.0, 2.0]


def test_the_wrong_secret_at_a_tcp_store(run_ranks):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def body(rank, size, store):
        os.environ["RINGCOLL_SECRET"] = "the right one" if rank == 0 else "a guess"
        return failing_init(rank, size, f"tcp://127.0.0.1:{port}")

    errors = run_ranks(2, body, connect=False, env={"RINGCOLL_TIMEOUT_S": "3"})
    assert "secret" in errors[1][1], errors


def test_a_rank_that_never_comes_is_named(run_ranks):
    def body(rank, size, store):
        return None if rank == 1 else failing_init(rank, size, store, timeout=1.5)

    errors = run_ranks(3, body, connect=False)
    for rank in (0, 2):
        assert errors[rank][0] == "Timeout", errors
    assert "1" in errors[0][1] and "rank" in errors[0][1], errors[0]


@pytest.mark.parametrize(
    "store",
    [
        "file:///nonexistent/ringcoll",
        "tcp://127.0.0.1:9",
        "horovod://127.0.0.1:9/scope",
        "file:relative",
    ],
)
def test_a_store_that_is_not_there(run_ranks, store):
    def body(rank, size, _):
        return failing_init(1, 2, store, timeout=1.5)

    ((kind, text),) = run_ranks(1, body, connect=False)
    assert kind in ("TransportError", "Timeout", "InvalidArgument"), text
    assert store.split("://")[-1].removeprefix("file:").split("/scope")[0] in text


@pytest.mark.parametrize("twice", [0, 1])
def test_two_processes_with_one_number(run_ranks, twice):
    def body(process, size, store):
        rank = process if process < 2 else twice
        try:
            ringcoll.init(rank, 3, store, timeout=3)  # rank 2 never comes
        except ringcoll.Error as error:
            return str(error)
        return ""

    errors = run_ranks(3, body, connect=False)
    named = [text for text in errors if f"rank {twice}" in text and "two processes" in text.lower()]
    assert named, errors


def listening_ports() -> list[int]:
    """Of this process, from /proc."""
    sockets = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            sockets.add(str(entry.readlink()))
    ports = []
    for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
            ports.append(int(fields[1].split(":")[1], 16))
    return ports


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_random_bytes_at_the_port_change_only_a_counter(run_ranks, transport):
    def body(world):
        ports = listening_ports()
        assert ports
        noise = random.Random(world.rank)
        attackers = []
        for number in range(20):
            attacker = socket.create_connection(("127.0.0.1", ports[0]), timeout=2)
            try:
                attacker.sendall(noise.randbytes(noise.choice([1, 16, 64, 4096])))
                if number % 3 == 0:
                    attacker.close()
            except OSError:
                pass  # it has hung up already
            attackers.append(attacker)
        x = np.arange(300_000.0)
        assert np.array_equal(world.allreduce(x), 2 * x)
        end = time.monotonic() + 8
        while world.stats()["rejected_connections"] < 20 and time.monotonic() < end:
            time.sleep(0.05)
        assert world.stats()["rejected_connections"] == 20
        assert np.array_equal(world.allreduce(x), 2 * x)

    run_ranks(2, body, env={"RINGCOLL_TRANSPORT": transport})


FULL_SHM = """
import os, sys, numpy, ringcoll
with open("/dev/shm/filler", "wb", buffering=0) as filler:
    try:
        while True:
            filler.write(bytes(4096))
    except OSError:
        pass
assert os.statvfs("/dev/shm").f_bavail == 0
rank = 0 if os.fork() else 1
world = ringcoll.init(rank, 2, "file://" + sys.argv[1])
assert world.allreduce(numpy.ones(5_000_000))[-1] == 2
assert world.stats()["peers"][1 - rank]["transport"] == "shm"
ringcoll.shutdown()
if rank == 0:
    assert os.wait()[1] == 0
    print("well")
"""


def test_a_full_dev_shm_does_not_matter(tmp_path):
    unshare = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
    mount = "mount -t tmpfs -o size=64k none /dev/shm"
    if subprocess.run([*unshare, "sh", "-c", mount], capture_output=True).returncode != 0:
        pytest.skip("mount namespaces are not allowed here")
    script = tmp_path / "job.py"
    script.write_text(FULL_SHM)
    done = subprocess.run(
        [
            *unshare,
            "sh",
            "-c",
            f'{mount} && exec "$@"',
            "sh",
            sys.executable,
            str(script),
            str(tmp_path),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "RINGCOLL_TIMEOUT_S": "10"},
    )
    assert done.returncode == 0 and "well" in done.stdout, done.stdout + done.stderr


def available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_more_than_2_to_the_31_elements(run_ranks, transport):
    count = (1 << 31) + 4099
    if available_bytes() < 4 * count:
        pytest.skip(f"needs {4 * count >> 30} GiB of memory")

    def body(world):
        x = np.full(count, world.rank + 1, "i1")
        x[-1] = 10 + world.rank
        x[1 << 31] = 20 + world.rank
        world.allreduce(x, out=x)
        assert (x[0], x[-1], x[1 << 31]) == (3, 21, 41)
        assert (x[:: 1 << 16] == 3).sum() >= len(x[:: 1 << 16]) - 1
        assert x.min() == 3

    run_ranks(2, body, env={"RINGCOLL_TRANSPORT": transport}, limit=120)
