"""From times to medians, ratios and verdicts."""

import pytest
from harness import figures
from harness.figures import MIB, Target


@pytest.mark.parametrize(
    ("text", "size"),
    [("4", 4), ("64KiB", 65536), ("16M", 16 * MIB), ("1 GiB", 1 << 30), ("8B", 8), ("1k", 1024)],
)
def test_size_is_parsed(text: str, size: int) -> None:
    assert figures.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "x", "3", "0", "-4", "4KK", "1.5M"])
def test_bad_size_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match=f'"{text}"'):
        figures.parse_size(text)


def test_format_size_takes_the_largest_whole_unit() -> None:
    assert [figures.format_size(s) for s in (4, 1024, 1028, 256 * MIB)] == [
        "4 B",
        "1 KiB",
        "1028 B",
        "256 MiB",
    ]


def test_format_seconds_keeps_three_digits() -> None:
    times = [0.25e-6, 7.6e-6, 52e-6, 0.0017, 0.144, 2.5]
    texts = ["0.25 µs", "7.60 µs", "52.0 µs", "1.70 ms", "144 ms", "2.50 s"]
    assert [figures.format_seconds(t) for t in times] == texts


def test_a_batch_is_as_slow_as_its_slowest_rank() -> None:
    assert figures.batch_seconds([[1.0, 2.0, 9.0], [3.0, 1.0, 1.0]], calls=2) == [1.5, 1.0, 4.5]


def test_ratio_is_the_median_of_the_rounds_not_the_ratio_of_medians() -> None:
    assert figures.ratio([10.0, 2.0, 3.0], [1.0, 2.0, 1.0]) == 3.0


def test_ratio_leaves_out_rounds_that_one_side_missed() -> None:
    assert figures.ratio([10.0, None, 4.0], [5.0, 1.0, 1.0]) == 3.0
    assert figures.ratio([None], [1.0]) is None
    assert figures.ratio([1.0], []) is None


def test_a_visit_takes_about_its_budget() -> None:
    for expected in (1e-7, 1e-5, 1e-3, 2e-2):
        batches, calls = figures.plan_visit(expected, 0.1)
        assert 0.05 < batches * calls * expected < 0.2
        assert batches * calls * expected >= figures.LEAST_BATCH_S


def test_a_slow_peer_is_called_once() -> None:
    assert figures.plan_visit(3.0, 0.1) == (1, 1)


def test_one_call_for_each_batch_where_asked() -> None:
    assert figures.plan_visit(1e-6, 0.1, one_call=True) == (figures.MOST_BATCHES, 1)


def test_target_is_judged_only_at_its_sizes() -> None:
    targets = [Target("gloo", 2, 5.0), Target("Open MPI", 2, 2.0, least=16 * MIB)]
    ratios = {(2, "gloo", 4): 6.0, (2, "Open MPI", 4): 0.5, (2, "Open MPI", 16 * MIB): 1.9}
    gloo, openmpi = figures.judge(targets, ratios)
    assert gloo.met is True
    assert openmpi.met is False
    assert openmpi.misses == [(16 * MIB, 1.9)]


def test_target_without_measurement_is_neither_met_nor_missed() -> None:
    [verdict] = figures.judge([Target("gloo", 4, 1.0)], {(2, "gloo", 4): 6.0})
    assert verdict.met is None


def test_wanted_is_the_strictest_target_of_a_cell() -> None:
    targets = [Target("a", 2, 1.0), Target("a", 2, 2.0, least=64)]
    assert figures.wanted(targets, 2, "a", 4) == 1.0
    assert figures.wanted(targets, 2, "a", 64) == 2.0
    assert figures.wanted(targets, 4, "a", 64) is None
