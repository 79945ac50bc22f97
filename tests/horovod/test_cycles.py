"""When Horovod's cycles begin under the controller RINGCOLL: at news, and else hardly ever.

Times are compared with those of cycles that follow the clock, or with the 50 ms after which a
quiet job has a cycle all the same (compat/horovod/ringcoll_cycles.cc).
"""

import json

QUIET_CYCLE_S = 0.05
CLOCK_MS = 40


def run(start, folder, *arguments, np=2, **environment):
    folder.mkdir(exist_ok=True)
    job = start(
        "cycles.py", folder, *arguments, np=np, HOROVOD_CPU_OPERATIONS="RINGCOLL", **environment
    )
    done = job.wait()
    assert done.status == 0, done.output
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(np)]


def test_a_tensor_begins_a_cycle_and_nothing_else_does(start, tmp_path):
    """With Horovod's own clock of a millisecond it would be as soon, but not sleep."""
    clocked = run(start, tmp_path / "clock", "all", HOROVOD_CYCLE_TIME="1")
    for facts, by_clock in zip(run(start, tmp_path / "news", "all"), clocked, strict=True):
        assert facts["median"] < QUIET_CYCLE_S / 5
        assert facts["cores"] < by_clock["cores"] / 2


def test_cycles_follow_the_clock_where_the_user_says_so(start, tmp_path):
    for facts in run(start, tmp_path, "all", HOROVOD_CYCLE_TIME=str(CLOCK_MS)):
        assert facts["median"] > CLOCK_MS / 1000 / 4


def test_cycles_follow_the_clock_of_all_if_one_rank_has_one(start, tmp_path):
    """Rank 1, which has one, reduces by itself. The other would sleep in the meantime, as nobody
    rings it, and a cycle takes both."""
    clock_ms = 8
    _, facts = run(start, tmp_path, "1", str(clock_ms))
    assert clock_ms / 1000 / 4 < facts["median"] < QUIET_CYCLE_S / 2


def test_a_tensor_of_some_ranks_wakes_all(start, tmp_path):
    """Rank 0, which is not one of them, has to take part in their cycles."""
    first, *members = run(start, tmp_path, "1,2", np=3)
    assert first["cores"] < 0.05
    for facts in members:
        assert facts["median"] < QUIET_CYCLE_S / 2
    late_rank, waiting = members
    assert late_rank["late"] < QUIET_CYCLE_S / 2
    assert waiting["late"] > QUIET_CYCLE_S  # so much later did the other come


def test_over_tcp_too(start, tmp_path):
    for facts in run(start, tmp_path, "1,2", np=3, RINGCOLL_TRANSPORT="tcp")[1:]:
        assert facts["median"] < QUIET_CYCLE_S / 2


def test_a_job_of_one(start, tmp_path):
    (facts,) = run(start, tmp_path, "all", np=1)
    assert facts["median"] < QUIET_CYCLE_S / 5
