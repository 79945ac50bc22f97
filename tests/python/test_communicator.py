"""Errors, sub-communicators, statistics and the life of a communicator."""

from __future__ import annotations

import json
import os
import pickle
import re
import time
from pathlib import Path

import numpy as np
import pytest

import ringcoll

# What rank 1 does while rank 0 sums 1000 float32.
DISAGREEMENTS = {
    "collective": lambda world: world.broadcast(np.ones(1000, "f4")),
    "count": lambda world: world.allreduce(np.ones(1001, "f4")),
    "dtype": lambda world: world.allreduce(np.ones(1000, "i4")),
    "op": lambda world: world.allreduce(np.ones(1000, "f4"), "max"),
}


def check_mismatch(world, call):
    with pytest.raises(ringcoll.Mismatch, match=r"rank 0.*rank 1|rank 1.*rank 0") as caught:
        call(world)
    assert caught.value.code == "Mismatch"
    with pytest.raises(ringcoll.Mismatch):  # poisoned: the same error again
        world.allreduce(np.ones(1))


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("what", DISAGREEMENTS)
def test_mismatch_names_both_sides(run_ranks, what, transport):
    def body(world):
        check_mismatch(
            world,
            DISAGREEMENTS[what] if world.rank == 1 else lambda w: w.allreduce(np.ones(1000, "f4")),
        )

    run_ranks(2, body, env={"RINGCOLL_TRANSPORT": transport, "RINGCOLL_TIMEOUT_S": "5"})


def test_mismatch_of_root(run_ranks):
    def body(world):
        # Each takes itself for the root and only sends: noticed by the next call that receives.
        with pytest.raises(ringcoll.Mismatch, match="root"):
            world.broadcast(np.ones(1000), root=world.rank)
            world.allreduce(np.ones(1000))

    run_ranks(2, body, env={"RINGCOLL_TIMEOUT_S": "5"})


def test_mismatch_of_an_async_call(run_ranks):
    def body(world):
        handle = world.allreduce_async(np.ones(10 + world.rank))
        for _ in range(2):
            with pytest.raises(ringcoll.Mismatch):
                handle.wait()
        assert handle.done()

    run_ranks(2, body, env={"RINGCOLL_TIMEOUT_S": "5"})


def test_split_by_color_and_key(run_ranks):
    def body(world):
        sub = world.split(color=world.rank % 2, key=-world.rank)
        assert sub.size == 2 and sub.rank == (1 if world.rank < 2 else 0)
        assert sub.name == "world/1" and world.split(color=0).name == "world/2"
        total = sub.allreduce(np.array([world.rank]))[0]
        assert total == (2 if world.rank % 2 == 0 else 4)
        alone = world.split(color=None if world.rank else 7, name="alone")
        if world.rank == 0:
            assert (alone.size, alone.name) == (1, "alone")
            assert alone.allreduce(np.ones(2)).tolist() == [1, 1]
        else:
            assert alone is None
        world.barrier()
        sub.close()
        return int(total)

    assert run_ranks(4, body) == [2, 4, 2, 4]


def test_all_ranks_hear_at_once_of_a_bad_color_or_key(run_ranks):
    def body(world):
        for bad in ({"color": -1}, {"color": 2**63}, {"color": 1, "key": -(2**64)}):
            with pytest.raises(ringcoll.InvalidArgument, match="rank 1 passed a bad color or key"):
                world.split(**bad if world.rank == 1 else {"color": 1})
        assert world.split(color=1).size == 2, "the communicator is still good"

    run_ranks(2, body)


def test_split_by_ranks(run_ranks):
    def body(world):
        sub = world.split([2, 0] if world.rank != 1 else [])
        if world.rank == 1:
            assert sub is None
        else:
            assert sub.rank == (0 if world.rank == 2 else 1)
            assert sub.allgather(np.array([world.rank])).tolist() == [2, 0]
            nested = sub.split([sub.rank])
            assert nested.size == 1
        with pytest.raises(ringcoll.InvalidArgument):
            world.split([7])
        world.barrier()

    run_ranks(3, body)


def test_a_sub_communicator_outlives_its_parent(run_ranks):
    def body(world):
        sub = world.split([1, 0])
        world.close()
        assert sub.allreduce(np.ones(3)).tolist() == [2, 2, 2]
        sub.close()

    run_ranks(2, body)


def test_stats(run_ranks):
    def body(world):
        before = world.stats()
        assert (before["rank"], before["size"]) == (world.rank, 2)
        x = np.ones(1 << 18, "f4")
        for _ in range(3):
            world.allreduce(x)
        world.allreduce_async(x).wait()
        after = world.stats()
        assert after["calls"] - before["calls"] == 4
        # A network sends a large tensor as it lies; within a host the link copies each message.
        transport = after["peers"][1 - world.rank]["transport"]
        ways = {"tcp": "bytes_sent_zero_copy", "shm": "bytes_sent_copied"}
        way = ways.get(transport, "bytes_packed")
        assert after[way] > before[way]
        assert sorted(after["ring_order"]) == [0, 1]
        assert [peer["pid"] for peer in after["peers"]][world.rank] == os.getpid()
        return transport

    env = {"RINGCOLL_TRANSPORT": "tcp", "RINGCOLL_ALGORITHM": "allreduce=ring"}
    assert run_ranks(2, body, env=env) == ["tcp", "tcp"]
    assert run_ranks(2, body) == ["shm", "shm"]


def test_abort_reaches_all_ranks(run_ranks):
    def body(world):
        if world.rank == 2:
            time.sleep(0.3)
            world.abort("the data ran out")
        begin = time.monotonic()
        with pytest.raises(ringcoll.Aborted, match="the data ran out") as caught:
            world.allreduce(np.ones(3))
        assert time.monotonic() - begin < 2
        assert caught.value.rank == 2

    run_ranks(3, body)


def test_close_and_begin_again_in_one_process(run_ranks):
    def body(rank, size, store):
        for number in range(4):
            with ringcoll.init(rank, size, store) as world:
                assert world is ringcoll.world()
                assert world.allreduce(np.array([number]))[0] == 2 * number
                with pytest.raises(ringcoll.InvalidArgument, match="init was called already"):
                    ringcoll.init(rank, size, store)
            assert world.closed
            with pytest.raises(ringcoll.InvalidArgument, match="closed"):
                world.barrier()
            ringcoll.shutdown()
            ringcoll.shutdown()
        return [path.name for path in Path(store.removeprefix("file://")).iterdir()]

    assert run_ranks(2, body, connect=False) == [[], []]


def test_begin_again_after_an_error(run_ranks):
    def body(rank, size, store):
        world = ringcoll.init(rank, size, store)
        with pytest.raises(ringcoll.Mismatch):
            world.allreduce(np.ones(10 + rank))
        ringcoll.shutdown()
        return float(ringcoll.init(rank, size, store).allreduce(np.ones(1))[0])

    assert run_ranks(2, body, connect=False) == [2.0, 2.0]


def test_a_peer_that_leaves_is_lost(run_ranks):
    def body(world):
        if world.rank == 1:
            world.close()
            return
        with pytest.raises(ringcoll.PeerLost, match="rank 1") as caught:
            world.allreduce(np.ones(3))
        assert caught.value.rank == 1

    run_ranks(2, body)


def test_one_rank_alone(run_ranks):
    def body(rank, size, store):
        for name in list(os.environ):
            if name.startswith(("OMPI_", "PMI_", "SLURM_", "HOROVOD_")):
                del os.environ[name]
        world = ringcoll.init()
        assert (world.rank, world.size) == (0, 1)
        assert world.allreduce(np.ones(3), "average").tolist() == [1, 1, 1]
        assert world.alltoall(np.arange(3)).tolist() == [0, 1, 2]
        world.barrier()
        assert "rank 0 of 1" in repr(world)

    run_ranks(1, body, connect=False)


def test_a_forked_child_leaves_the_communicator_alone(run_ranks):
    def refused(call) -> bool:
        with pytest.raises(ringcoll.InvalidArgument, match="forked"):
            call()
        return True

    def body(world):
        running = world.allreduce_async(np.ones(1 << 20))
        child = os.fork()
        if child == 0:
            calls = [
                lambda: world.allreduce(np.ones(3)),
                lambda: world.barrier(),
                lambda: world.allreduce_async(np.ones(3)),
                lambda: world.split([0, 1]),
                lambda: world.stats(),
                lambda: running.wait(),
            ]
            told = all(refused(call) for call in calls)
            # Would hang or tear down the parent's links if the child freed what it inherited.
            ringcoll.shutdown()
            alone = ringcoll.init(0, 1)
            os._exit(0 if told and alone.allreduce(np.ones(3)).sum() == 3 else 1)
        assert (running.wait() == 2).all()
        assert os.waitpid(child, 0)[1] == 0
        assert (world.allreduce(np.ones(3)) == 2).all()

    run_ranks(2, body)


def test_first_line_of_the_log(start_ranks):
    outcomes = start_ranks(2, lambda world: None).join()
    assert [out.exit_code for out in outcomes] == [0, 0]
    first = outcomes[0].output.splitlines()[0]
    assert ringcoll.__version__ in first and "2 ranks" in first and "shm" in first, first
    assert outcomes[1].output == ""


def test_errors_survive_pickling():
    for kind in (ringcoll.Error, ringcoll.PeerLost, ringcoll.Timeout, ringcoll.Mismatch):
        error = pickle.loads(pickle.dumps(kind("allreduce #3: gone", 5)))
        assert (type(error), str(error), error.rank) == (kind, "allreduce #3: gone", 5)
    assert issubclass(ringcoll.Timeout, TimeoutError) and issubclass(
        ringcoll.PeerLost, ConnectionError
    )
    assert issubclass(ringcoll.InvalidArgument, ValueError)


def test_nothing_is_left(run_ranks, tmp_path):
    def shared() -> set[str]:
        # Semaphores are those of other programs of this machine: multiprocessing's.
        return {
            path.name for path in Path("/dev/shm").iterdir() if not path.name.startswith("sem.")
        }

    before = shared()
    run_ranks(3, lambda world: world.allreduce(np.ones(1_000_000)).sum())
    assert shared() <= before
    files = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {Path(f"job0/output.{rank}") for rank in range(3)}


def test_costs_are_in_the_statistics_and_inherited(run_ranks, tmp_path):
    """What stats() says is a file that RINGCOLL_COSTS takes."""

    def body(world):
        costs = world.stats()["costs"]
        assert set(costs["levels"]["host"]) == {
            "latency_us",
            "rank_bytes_per_us",
            "group_bytes_per_us",
        }
        # On a loaded host some figures are the one and some the other.
        assert re.match("measured|defaults", costs["source"]) and costs["measuring_ms"] > 0
        part = world.split(color=world.rank % 2)
        inherited = part.stats()["costs"]
        assert (inherited["levels"], inherited["source"]) == (costs["levels"], costs["source"])
        return json.dumps(costs)

    said = run_ranks(4, body)
    path = tmp_path / "costs.json"
    path.write_text(said[0])
    given = run_ranks(2, lambda world: world.stats()["costs"], env={"RINGCOLL_COSTS": str(path)})
    for costs in given:
        assert costs["levels"] == json.loads(said[0])["levels"]
        assert costs["source"] == f"RINGCOLL_COSTS={path}"


@pytest.mark.parametrize("transport", ["tcp", "shm"])
@pytest.mark.parametrize("leaver", [0, 1])
def test_a_group_whose_rank_left_without_a_call_ends_at_once(run_ranks, transport, leaver):
    """No link of it is open then, so one waits for a connection that nobody makes."""

    def body(world):
        pair = world.split([0, 1])
        if world.rank == leaver:
            pair.close()
        world.barrier()
        begin = time.monotonic()
        if world.rank != leaver:
            how = "has left the communicator|closed the connection"
            with pytest.raises(ringcoll.PeerLost, match=how) as lost:
                pair.barrier()
            assert lost.value.rank == leaver
        world.barrier()  # the leaver's process is there, and its other communicators
        return time.monotonic() - begin

    took = run_ranks(2, body, env={"RINGCOLL_TRANSPORT": transport})
    assert max(took) < 20  # and not the 300 s of the deadline
