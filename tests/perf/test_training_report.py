"""Tables of steps of training: what they took of the processors, and what waiting costs."""

import json

import pytest
from harness import training_report
from harness.report import Results, Visit

LABELS = {0: "digits", 1: training_report.WAITING, 2: training_report.ALONE}


@pytest.fixture
def results() -> Results:
    made = Results("T", "RINGCOLL", "How.", [], {"cpu": "a CPU"}, {"RINGCOLL": "1", "MPI": "1"})
    made.labels = LABELS
    for peer, waiting in (("RINGCOLL", 0.011), ("MPI", 0.02)):
        made.rounds |= {(2, peer, 1): [waiting] * 2, (2, peer, 2): [0.01] * 2}
    made.rounds[2, "RINGCOLL", 0] = [0.004, 0.006]
    # Two visits, of 4 and of 6 steps.
    made.visits[2, "RINGCOLL", 0] = [Visit([0.004] * 4, 1, 0.02), Visit([0.006] * 6, 1, 0.08)]
    return made


def test_processor_time_is_of_a_step(results: Results) -> None:
    assert training_report.processor_seconds(results, (2, "RINGCOLL", 0)) == pytest.approx(0.01)
    assert training_report.processor_seconds(results, (2, "MPI", 0)) is None
    text = training_report.to_markdown(results)
    assert "| digits | 10.0 ms | – |" in text


def test_what_waiting_costs_is_held_against_nobody_waiting(results: Results) -> None:
    assert "rank 0 takes so many times as long as alone: \nRINGCOLL 1.10, MPI 2.00." in (
        training_report.to_markdown(results)
    )


def test_json_names_cases(results: Results) -> None:
    rows = json.loads(training_report.to_json(results))["measurements"]
    of_digits = [row for row in rows if row["case"] == "digits"]
    assert len(of_digits) == 1 and "bytes" not in of_digits[0]
    assert of_digits[0]["processor_s"] == pytest.approx(0.01)
