"""What is measured on emulated hosts, and the bound of each case."""

import pytest
from harness.figures import MIB
from harness.shapes import UNSHAPED, Case, Shape, bits_per_second


def test_shapes_are_parsed_and_number_ranks_host_by_host() -> None:
    assert Shape.parse("2x4") == Shape((4, 4))
    assert str(Shape.parse("2x4")) == "2 × 4"
    uneven = Shape.parse("1+2+4")
    assert str(uneven) == "1 + 2 + 4"
    assert (uneven.hosts, uneven.size) == (3, 7)
    assert [uneven.ranks_of(host) for host in range(3)] == [[0], [1, 2], [3, 4, 5, 6]]


@pytest.mark.parametrize("text", ["", "2", "0x2", "2x", "1+", "2x2x2", "1+0"])
def test_bad_shape_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match=f'"{text}"'.replace("+", r"\+")):
        Shape.parse(text)


def test_bad_rate_is_refused_by_name() -> None:
    assert bits_per_second("10gbit") == 1e10
    assert bits_per_second(UNSHAPED) == 0
    with pytest.raises(ValueError, match='"fast" is not a rate'):
        bits_per_second("fast")


def test_the_bound_is_one_crossing_of_a_hosts_link() -> None:
    case = Case(Shape.parse("2x2"), "1gbit", ())
    assert case.bound_s(64 * MIB) == pytest.approx(0.537, rel=1e-3)
    assert Case(Shape.parse("4x2"), "1gbit", ()).bound_s(64 * MIB) == pytest.approx(0.805, rel=1e-3)
    assert Case(Shape.parse("4x2"), UNSHAPED, ()).bound_s(MIB) is None


def test_two_networks_are_twice_the_rate() -> None:
    case = Case(Shape.parse("2x2"), "1gbit", (), networks=2)
    assert case.bound_s(64 * MIB) == pytest.approx(0.537 / 2, rel=1e-3)
    assert str(case) == "2 × 2 ranks, 1 Gb/s, 2 networks"
    assert not case.is_plain
    assert Case(Shape.parse("2x2"), "1gbit", ()).is_plain


def test_between_racks_a_tenth_of_the_rate_is_the_bound() -> None:
    case = Case(Shape.parse("4x1"), "1gbit", (), racks=True)
    assert case.rack_of_host == (0, 1, 0, 1)
    assert case.uplink == "100mbit"
    assert case.bound_s(MIB) == pytest.approx(10 * MIB * 8 / 1e9)
    assert str(case) == "4 × 1 ranks, 1 Gb/s, two racks"
