"""Tables and verdicts of groups and of calls in flight."""

import json

import pytest
from harness import groups_report, in_flight, report, shrinks
from harness.figures import KIB, MIB, OURS
from harness.groups_report import InFlight, Results, ShrinksFound, SplitsFound
from harness.in_flight import IN_FLIGHT, ONE, ONE_GROUP, SIZES, TWO_GROUPS, Place
from harness.peers import BEFORE
from harness.shrinks import Shrinks
from harness.splits import Added, Found, Splits, cases


def found(split_s: float, used: Added, unused: int = 4 * KIB) -> Found:
    first, nothing = Added(0, 0, unused, unused), Added(0, 0, 0, 0)
    return Found([split_s] * 20, [2 * split_s] * 20, first, first, used, used, nothing)


def splits_of(transport: str, groups: int, members: int, **rounds: Found) -> SplitsFound:
    case = Splits(8, members, groups, transport)
    named = {"ours": OURS, "before": BEFORE}
    return SplitsFound(case, {named[name]: [one, one] for name, one in rounds.items()})


def calls_of(place: Place, seconds: dict[str, float], library: str = OURS) -> InFlight:
    results = report.Results("", OURS, "", [], {}, {})
    for way, value in seconds.items():
        results.rounds[place.ranks, in_flight.key(library, way), SIZES[0]] = [value, value]
    return InFlight(place, results)


@pytest.fixture
def results() -> Results:
    return Results("T", "How.", {"cpu": "a CPU"}, {OURS: "1", BEFORE: "0"})


def test_splits_are_held_against_their_targets(results: Results) -> None:
    before = found(20e-3, Added(160, 20, 8 * MIB, 4 * MIB), MIB)
    results.splits = [
        splits_of("shm", 20, 8, ours=found(0.5e-3, Added(0, 0, MIB, MIB)), before=before),
        splits_of("shm", 64, 4, ours=found(0.3e-3, Added(0, 0, 20 * MIB, 9 * MIB))),
        splits_of("tcp", 20, 8, ours=found(2.5e-3, Added(160, 0, MIB, MIB), 300 * KIB)),
    ]
    text = groups_report.to_markdown(results)
    assert "| 20 groups of 8 of 8 ranks, shm | ringcoll before | 20.0 ms (40.00) |" in text
    assert "split of 8 ranks by shm: at most 2 ms: met in all 1 cells" in text
    assert "no thread is added: met in all 3 cells" in text
    assert "shm: no descriptor: met in all 2 cells" in text
    of_tcp = "20 groups of 8 of 8 ranks, tcp"
    assert f"for each pair that a group uses: **NOT MET** in 1 of 1 cells: {of_tcp} (1.14)" in text
    assert f"at most 256 KiB a rank: **NOT MET** in 1 of 3 cells: {of_tcp} (300.00)" in text
    assert "at most 16 MiB a rank: **NOT MET** in 1 of 1 cells: 64 groups of 4 of 8" in text


def test_a_descriptor_for_each_pair_is_what_tcp_may_take(results: Results) -> None:
    results.splits = [splits_of("tcp", 20, 8, ours=found(1e-3, Added(140, 0, 0, 0)))]
    assert "for each pair that a group uses: met" in groups_report.to_markdown(results)


def test_shrinks_of_8_ranks_are_held_against_their_target(results: Results) -> None:
    def lost(ranks: int, transport: str, *shrink_s: float) -> ShrinksFound:
        rounds = [shrinks.Found(1e-3, seconds, 2 * seconds) for seconds in shrink_s]
        return ShrinksFound(Shrinks(ranks, transport), {OURS: rounds})

    results.shrinks = [lost(8, "shm", 0.1, 0.15, 9.0), lost(3, "shm", 0.5)]
    assert "shrink of 8 ranks: at most 200 ms: met in all 1 cells" in groups_report.to_markdown(
        results
    )
    results.shrinks.append(lost(8, "tcp", 0.25))
    text = groups_report.to_markdown(results)
    assert "| 8 ranks without one, tcp | ringcoll | 1.00 ms | 250 ms | 500 ms |" in text
    missed = "8 ranks without one, tcp (250.00)"
    assert f"at most 200 ms: **NOT MET** in 1 of 2 cells: {missed}" in text


def test_calls_in_flight_are_held_against_one(results: Results) -> None:
    seconds = {ONE: 1e-3, IN_FLIGHT: 1.2e-3, ONE_GROUP: 1e-3, TWO_GROUPS: 1.25e-3}
    results.in_flight = [calls_of(Place(2, "shm"), seconds)]
    text = groups_report.to_markdown(results)
    assert "## Calls in flight: 2 ranks, shm" in text
    assert "| 16 × 4 KiB | 1.00 ms | – (–) | – (–) | 1.20 ms (1.20) | –" in text
    assert "| 1.00 ms | 1.25 ms (0.80) |" in text
    missed = "**NOT MET** in 1 of 1 cells: 2 ranks, shm, 16 × 4 KiB (1.20)"
    assert f"what one call as long takes: {missed}" in text
    assert "as half of one group: **NOT MET** in 1 of 1 cells" in text


def test_the_library_before_is_not_judged(results: Results) -> None:
    results.in_flight = [calls_of(Place(2, "tcp"), {ONE: 1.0, IN_FLIGHT: 9.0}, BEFORE)]
    text = groups_report.to_markdown(results)
    assert "| 16 × 4 KiB, ringcoll before | 1.00 s | – (–) | – (–) | 9.00 s (9.00) |" in text
    assert "what one call as long takes: not measured" in text


def test_document_has_what_each_job_said(results: Results) -> None:
    results.splits = [splits_of("shm", 20, 8, ours=found(1e-3, Added(0, 0, 0, 0)))]
    results.in_flight = [calls_of(Place(2, "shm"), {ONE: 1e-3})]
    document = json.loads(groups_report.to_json(results))
    [splits] = document["splits"]
    assert splits["split_s"] == 1e-3
    assert [one["used"]["descriptors"] for one in splits["rounds"]] == [0, 0]
    [one] = [call for call in document["in_flight"] if call["median_s"]]
    assert (one["way"], one["bytes"], one["place"]) == (ONE, 64 * KIB, "2 ranks, shm")


def test_nothing_measured_is_seen(results: Results) -> None:
    results.splits = [splits_of("shm", 20, 8, ours=found(1e-3, Added(0, 0, 0, 0)))]
    assert results.rounds
    results.splits = [SplitsFound(one, {OURS: []}) for one in cases(["shm"])]
    assert not results.rounds
