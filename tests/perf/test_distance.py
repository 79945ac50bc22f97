"""How far apart cores are: states, what counts, and what is reported of each."""

import json
import os
import shutil
from pathlib import Path

import pytest
from harness import build, distance, figures, peers, report, rounds
from harness.distance import FAR, NEAR, ONE_CORE, Distance, Unsettled, Watch, between
from harness.figures import BOUND, MIB, PACEMAKER, Target
from harness.jobs import Job, Spec, Way
from harness.report import Results

needs_cc = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler: cc is not on PATH")
TWO_CPUS = len(os.sched_getaffinity(0)) > 1


def test_a_round_trip_has_a_state() -> None:
    states = [Distance(ns).state for ns in (40, 90, 140, 450)]
    assert states == [ONE_CORE, NEAR, NEAR, FAR]


def test_what_was_measured_while_the_distance_changed_has_none() -> None:
    assert between(Distance(90), Distance(110)) == NEAR
    with pytest.raises(Unsettled, match="near before and far after"):
        between(Distance(90), Distance(450))
    with pytest.raises(Unsettled, match="could not be told"):
        between(None, Distance(90))


@needs_cc
def test_it_is_taken_where_there_are_two_cpus(tmp_path: Path) -> None:
    taken = Watch(tmp_path).take()
    assert (taken is not None) == TWO_CPUS
    assert taken is None or taken.round_trip_ns > 0
    assert (distance.describe(tmp_path) == "unknown") != TWO_CPUS


@needs_cc
def test_it_is_asked_for_where_ranks_have_two_cpus_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not TWO_CPUS:
        pytest.skip("there is one CPU")
    for cpus, asked in ((2, True), (3, False), (1, False)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, n=cpus: set(range(n)))
        assert (distance.taker(tmp_path) is not None) == asked


class Scripted:
    """Jobs that take what they are told, at distances that are told."""

    def __init__(self, *round_trips: float) -> None:
        self.round_trips = list(round_trips)
        self.spec = Spec("scripted", [])

    def take(self) -> Distance:
        return Distance(self.round_trips.pop(0) if len(self.round_trips) > 1 else 90)

    def ask(self, line: str, answer: str) -> list[list[str]]:
        _, _, batches, calls = line.split()
        return [[str(0.2 * int(calls))] * int(batches)]  # of one rank

    def processor_seconds_by_rank(self) -> list[float]:
        return [0.0]

    def close(self) -> None:
        pass


@pytest.fixture
def nothing_yet(results: Results) -> Results:
    results.rounds, results.memory = {}, []
    return results


def run(results: Results, scripted: Scripted, **plan: object) -> None:
    jobs: rounds.Jobs = {"ringcoll": scripted}  # type: ignore[dict-item]
    rounds.run_rounds(
        jobs, 2, rounds.Plan(budget_s=0.1, take_distance=scripted.take, **plan), results
    )


def test_visits_in_which_it_changed_do_not_count(nothing_yet: Results) -> None:
    # Before all, after the calibration, and after each of three rounds.
    run(nothing_yet, Scripted(90, 90, 90, 450, 450, 90), sizes=[4], rounds=3)
    assert nothing_yet.rounds[2, "ringcoll", 4] == [0.2, None, 0.2]
    assert nothing_yet.states[2, "ringcoll", 4] == [NEAR, "", FAR]
    assert nothing_yet.unsettled == 1


def test_rounds_are_spread_over_passes(nothing_yet: Results) -> None:
    seen: list[int] = []
    scripted = Scripted(90)
    run(
        nothing_yet,
        scripted,
        sizes=[4, 8],
        rounds=5,
        passes=2,
        after_size=lambda size, jobs: seen.append(size),
    )
    assert seen == [4, 8, 4, 8]
    assert [len(nothing_yet.rounds[2, "ringcoll", size]) for size in (4, 8)] == [5, 5]


@pytest.fixture
def both(results: Results) -> Results:
    """Near three times as fast as the peer, far as fast."""
    results.targets = [Target("gloo", 2, 2.0)]
    results.memory = []
    results.rounds = {
        (2, "ringcoll", MIB): [1e-3, 5e-3, 1e-3, None],
        (2, "gloo", MIB): [3e-3, 5e-3, 7e-3, 7e-3],
        (2, "one", MIB): [4e-4, 4e-3, 2e-4, 1e-4],
        (2, "other", MIB): [3e-4, 9e-3, None, 1e-4],
    }
    results.states = {
        (2, "ringcoll", MIB): [NEAR, FAR, NEAR, ""],
        (2, "gloo", MIB): [NEAR, FAR, FAR, NEAR],
        (2, "one", MIB): [NEAR, FAR, NEAR, FAR],
        (2, "other", MIB): [NEAR, FAR, "", FAR],
    }
    results.limits = {PACEMAKER: ["one", "other"]}
    results.peers = {PACEMAKER: "", **results.peers}
    return results


def test_each_state_has_its_own_ratios(both: Results) -> None:
    parts = dict(both.parts())
    assert list(parts) == [NEAR, FAR]
    # Rounds in which the two were visited in different states compare nothing.
    assert parts[NEAR].ratios()[2, "gloo", MIB] == 3.0
    assert parts[FAR].ratios()[2, "gloo", MIB] == 1.0


def test_a_limit_is_the_best_of_its_ways_in_each_round(both: Results) -> None:
    parts = dict(both.parts())
    assert parts[NEAR].rounds[2, PACEMAKER, MIB] == [3e-4, None, 2e-4, None]
    assert parts[FAR].rounds[2, PACEMAKER, MIB][1] == 4e-3


def test_states_are_reported_apart(both: Results) -> None:
    text = report.to_markdown(both)
    assert "## 2 ranks, near\n" in text and "## 2 ranks, far\n" in text
    assert "|  | one | other |" in text
    assert "- near, 2 ranks: at least 2 times as fast as gloo: met" in text
    assert "- far, 2 ranks: at least 2 times as fast as gloo: **NOT MET**" in text
    assert not both.all_met()
    cells = json.loads(report.to_json(both))["measurements"]
    assert {cell["distance"] for cell in cells} == {NEAR, FAR}


def test_a_target_may_be_of_one_state(both: Results) -> None:
    both.targets = [Target("gloo", 2, 2.0, states=(FAR,)), Target("gloo", 2, 3.0, states=(NEAR,))]
    verdicts = {state: part.verdicts() for state, part in both.parts()}
    assert [verdict.target.ratio for verdict in verdicts[FAR]] == [2.0]
    assert [verdict.target.ratio for verdict in verdicts[NEAR]] == [3.0]


@needs_cc
@pytest.mark.parametrize("size", [4, 4100, 100_000, 9 * MIB])
def test_all_ways_to_the_limits_compute_what_they_say(tmp_path: Path, size: int) -> None:
    program = build.compile_c(
        "cc", [build.PERF / "pacemaker.c"], tmp_path / "pacemaker", ["-march=native"]
    )
    spec = Spec(PACEMAKER, [str(program), "{socket}", "{ranks}"])
    with Job(spec, 2, tmp_path) as job:
        for limit in (PACEMAKER, BOUND):
            for name, settings in peers.WAYS[limit].items():
                answers = Way(job, name, settings).ask(f"run {size} 2 2", "times")
                assert [len(answer) for answer in answers] == [2, 2]


def test_the_best_of_ways_that_were_not_all_measured() -> None:
    assert figures.best([[1.0, None, 3.0], [2.0, None]]) == [1.0, None, 3.0]
    assert figures.best([]) == []
