"""Real jobs under every launcher: which backend they use, and that all backends still work."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def results_of(folder, np):
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(np)]


def check_basics(found, np=2):
    for rank, facts in enumerate(found):
        assert facts["size"] == np
        assert facts["local"] == [rank, np, 0, 1]
        assert facts["homogeneous"]
        assert facts["total"] == [np * i + sum(range(np)) for i in range(10)]
        assert facts["alone"] == rank + 1
        assert facts["last"] == 0
    assert found[0]["joined"] == [np, 1.0]
    assert found[1]["joined"] == [np]


@pytest.mark.parametrize(
    "launcher", ["horovodrun --gloo", "horovodrun --mpi", "horovodrun", "mpirun"]
)
def test_the_variable_alone_switches_the_backend(start, tmp_path, launcher):
    timeline = tmp_path / "timeline.json"
    done = start(
        "backend.py",
        tmp_path,
        launcher=launcher,
        tensorflow=launcher == "horovodrun",  # which asks for the most
        HOROVOD_CPU_OPERATIONS="RINGCOLL",
        HOROVOD_TIMELINE=str(timeline),
    ).wait()
    assert done.status == 0, done.output
    found = results_of(tmp_path, 2)
    check_basics(found)
    assert all(facts["ringcoll"] and not facts["gloo"] for facts in found)
    text = timeline.read_text()
    assert "RINGCOLL_ALLREDUCE" in text
    assert "GLOO" not in text and "MPI_ALLREDUCE" not in text
    # The library says itself what it uses: one line, from rank 0.
    assert len([line for line in done.output.splitlines() if "[ringcoll] 0." in line]) == 1, (
        done.output
    )


@pytest.mark.parametrize(
    ("launcher", "operations", "activity"),
    [("horovodrun --gloo", "GLOO", "GLOO_ALLREDUCE"), ("mpirun", "MPI", "MPI_ALLREDUCE")],
)
def test_the_other_backends_work_as_before(start, tmp_path, launcher, operations, activity):
    timeline = tmp_path / "timeline.json"
    done = start(
        "backend.py",
        tmp_path,
        launcher=launcher,
        HOROVOD_CPU_OPERATIONS=operations,
        HOROVOD_TIMELINE=str(timeline),
        # They must not even look for the library.
        RINGCOLL_LIBRARY="/nonexistent/libringcoll.so",
    ).wait()
    assert done.status == 0, done.output
    found = results_of(tmp_path, 2)
    check_basics(found)
    assert not any(facts["ringcoll"] for facts in found)
    assert activity in timeline.read_text()
    assert "RINGCOLL" not in timeline.read_text()


@pytest.mark.parametrize(
    ("launcher", "operations", "controller", "activity"),
    [
        ("horovodrun --gloo", "RINGCOLL", "GLOO", "RINGCOLL_ALLREDUCE"),
        ("mpirun", "RINGCOLL", "MPI", "RINGCOLL_ALLREDUCE"),
        ("horovodrun --gloo", "GLOO", "RINGCOLL", "GLOO_ALLREDUCE"),
        ("mpirun", "MPI", "RINGCOLL", "MPI_ALLREDUCE"),
    ],
)
def test_a_controller_that_is_named_is_obeyed(
    start, tmp_path, launcher, operations, controller, activity
):
    timeline = tmp_path / "timeline.json"
    done = start(
        "backend.py",
        tmp_path,
        launcher=launcher,
        HOROVOD_CPU_OPERATIONS=operations,
        HOROVOD_CONTROLLER=controller,
        HOROVOD_TIMELINE=str(timeline),
    ).wait()
    assert done.status == 0, done.output
    found = results_of(tmp_path, 2)
    check_basics(found)
    assert all(facts["ringcoll"] for facts in found)
    assert all(facts["gloo"] == ("GLOO" in (operations, controller)) for facts in found)
    assert activity in timeline.read_text()


def test_two_hosts_in_one(start, tmp_path):
    done = start(
        "places.py",
        tmp_path,
        np=3,
        options=["-H", "localhost:2,127.0.0.1:1"],
        HOROVOD_CPU_OPERATIONS="RINGCOLL",
    ).wait()
    assert done.status == 0, done.output
    found = results_of(tmp_path, 3)
    assert [facts["local"] for facts in found] == [[0, 2, 0, 2], [1, 2, 0, 1], [0, 1, 1, 2]]
    assert not any(facts["homogeneous"] for facts in found)


def test_shutdown_and_a_second_init(start, tmp_path):
    done = start("again.py", tmp_path, HOROVOD_CPU_OPERATIONS="RINGCOLL").wait()
    assert done.status == 0, done.output
    assert [facts["sums"] for facts in results_of(tmp_path, 2)] == [[3.0] * 3, [3.0, 2.0] * 3]


@pytest.mark.parametrize(
    "frameworks", ["torch", pytest.param("torch,tensorflow", marks=pytest.mark.exhaustive)]
)
def test_lives_over_gloo(start, tmp_path, frameworks):
    """Horovod 0.28.1 meets addresses of the life before, and ends the process or hangs."""
    if "tensorflow" in frameworks:
        pytest.importorskip("tensorflow", reason="tensorflow is not installed")
    done = start(
        "gloo_lives.py",
        tmp_path,
        frameworks,
        np=3,
        HOROVOD_CPU_OPERATIONS="GLOO",
        HOROVOD_DYNAMIC_PROCESS_SETS="1",
    ).wait(240)
    assert done.status == 0, done.output
    if frameworks == "torch":
        expected = [[6.0, 4.0, 3.0, 3.0] * 12, [6.0, 3.0, 3.0] * 12, [6.0, 4.0] * 12]
    else:
        expected = [[6.0, 4.0] * 24, [6.0] * 24, [6.0, 4.0] * 24]
    assert [facts["sums"] for facts in results_of(tmp_path, 3)] == expected


def test_process_sets_come_and_go(start, tmp_path):
    done = start("dynamic_sets.py", tmp_path, np=3, HOROVOD_CPU_OPERATIONS="RINGCOLL").wait()
    assert done.status == 0, done.output
    assert [facts["sums"] for facts in results_of(tmp_path, 3)] == [[4.0] * 3, [], [4.0] * 3]


@pytest.mark.parametrize(
    ("launcher", "controller"),
    [
        ("horovodrun --gloo", "RINGCOLL"),
        pytest.param("horovodrun --gloo", "GLOO", marks=pytest.mark.exhaustive),
        pytest.param("mpirun", "MPI", marks=pytest.mark.exhaustive),
    ],
)
def test_process_sets_cost_no_thread_and_no_mesh(start, tmp_path, launcher, controller):
    """Beyond what another controller makes for each set itself, which its own operations show."""

    def grown(operations):
        folder = tmp_path / operations
        folder.mkdir()
        done = start(
            "set_costs.py",
            folder,
            np=4,
            launcher=launcher,
            HOROVOD_CPU_OPERATIONS=operations,
            HOROVOD_CONTROLLER=controller,
            # By the clock: else ranks ring one another to begin a cycle, and each opens the pipe
            # of another that sleeps when it first rings it, whatever the cycle is for.
            HOROVOD_CYCLE_TIME="1",
        ).wait()
        assert done.status == 0, done.output
        found = results_of(folder, 4)
        assert [facts["sets"] for facts in found] == [7] * 4
        return [facts["grown"] for facts in found]

    nothing = {"threads": 0, "descriptors": 0, "memories": 0}
    # A rank that wakes another one for the first time opens its pipe, whatever it is for. There are
    # fewer such ranks than sets.
    pipes = {"descriptors": 3}
    own = [nothing] * 4 if controller == "RINGCOLL" else grown(controller)
    for ours, theirs in zip(grown("RINGCOLL"), own, strict=True):
        for name in nothing:
            assert ours[name] <= theirs[name] + pipes.get(name, 0), (ours, theirs)


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ("0,1 0,1 0,1,2 0,1", "The ranks register process sets of different sizes"),
        ("0,1 0,2 0,1", "The ranks register process sets with different members"),
        ("0,1,2,3 0,1,2,3 0,1,2,3 0,1,3,4 0,1,2,3", "process sets with different members"),
    ],
)
def test_process_sets_that_differ_are_refused_on_all_ranks(start, tmp_path, members, reason):
    np = len(members.split())
    job = start("sets_that_differ.py", tmp_path, members, np=np, HOROVOD_CPU_OPERATIONS="RINGCOLL")
    done = job.wait()
    assert done.status == 0, done.output
    assert all(facts["refused"] for facts in results_of(tmp_path, np))
    assert reason in done.output


@pytest.mark.parametrize(
    ("launcher", "operations"),
    [("horovodrun --gloo", "RINGCOLL"), ("horovodrun --gloo", "GLOO"), ("mpirun", "MPI")],
)
def test_the_timeline_has_names_of_every_kind(start, tmp_path, launcher, operations):
    done = start(
        "timeline_names.py", tmp_path, launcher=launcher, HOROVOD_CPU_OPERATIONS=operations
    ).wait()
    assert done.status == 0, done.output
    events = json.loads((tmp_path / "timeline.json").read_text())
    shown = {event["args"].get("name") for event in events if event.get("name") == "process_name"}
    names = results_of(tmp_path, 2)[0]["names"]
    assert len(names) >= 39
    assert {f"allreduce.{name}" for name in names} <= shown, shown


def test_torch_and_tensorflow_in_one_process(start, tmp_path):
    pytest.importorskip("tensorflow", reason="tensorflow is not installed")
    done = start("two_frameworks.py", tmp_path, HOROVOD_CPU_OPERATIONS="RINGCOLL").wait(240)
    assert done.status == 0, done.output
    for facts in results_of(tmp_path, 2):
        assert facts == {"torch": [1.0, 3.0], "tensorflow": [1.0, 3.0], "gathered": [0, 1, 1]}


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"RINGCOLL_LIBRARY": "/nonexistent/libringcoll.so"}, "pip install ringcoll"),
        ({"RINGCOLL_TIMEOUT_S": "-1"}, "RINGCOLL_TIMEOUT_S"),
    ],
)
def test_a_backend_that_cannot_start_says_why(start, tmp_path, environment, reason):
    done = start("backend.py", tmp_path, HOROVOD_CPU_OPERATIONS="RINGCOLL", **environment).wait()
    assert done.status != 0
    assert "ValueError: Horovod initialization failed." in done.output
    assert reason in done.output
    assert "terminate called" not in done.output


def test_an_unknown_name_is_refused_with_the_known_ones(start, tmp_path):
    done = start("backend.py", tmp_path, launcher="mpirun", HOROVOD_CPU_OPERATIONS="RINGCOL").wait()
    assert done.status != 0
    assert "RINGCOLL" in done.output


def test_check_build_lists_the_backend(without_tensorflow):
    """It asks the first framework that there is, six times, in a process of its own each."""
    horovodrun = Path(sys.executable).parent / "horovodrun"
    listed = subprocess.run(
        [horovodrun, "--check-build"],
        env=os.environ | without_tensorflow,
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    ).stdout
    assert "[X] PyTorch" in listed
    controllers, operations = listed.split("Available Tensor Operations")
    assert "[X] Ringcoll" in controllers and "[X] Gloo" in controllers
    assert "[X] Ringcoll" in operations and "[X] Gloo" in operations
