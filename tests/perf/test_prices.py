"""What ringcoll is asked about the prices of a case, and what it answers."""

from pathlib import Path

import pytest
from harness import build, prices
from harness.figures import KIB, MIB
from harness.shapes import Case, Shape

ringcoll = pytest.importorskip("ringcoll")
LIBRARY = Path(ringcoll.__file__).parent / "libringcoll.so"
COST = {"latency_us": 30.0, "rank_bytes_per_us": 125.0, "group_bytes_per_us": 125.0}


def costs(*levels: str) -> dict[str, object]:
    return {"levels": dict.fromkeys(levels, COST), "source": "measured"}


def test_levels_are_those_of_the_case() -> None:
    case = Case(Shape.parse("4x2"), "1gbit", (KIB,))
    asked = prices.request(case, costs("host", "network"), cores=2)
    assert asked
    assert [(level["level"], level["ranks"]) for level in asked["levels"]] == [
        ("host", 2),
        ("network", 8),
    ]
    assert asked["crowded"]
    racks = Case(Shape.parse("4x2"), "1gbit", (KIB,), racks=True)
    asked = prices.request(racks, costs("host", "leaf", "spine"), cores=8)
    assert asked
    assert [level["ranks"] for level in asked["levels"]] == [2, 4, 8]
    assert not asked["crowded"]
    assert prices.request(Case(Shape.parse("1x4"), "1gbit", (KIB,)), costs("host"), 8)


def test_hosts_that_differ_have_no_prices() -> None:
    case = Case(Shape.parse("1+2"), "1gbit", (KIB,))
    assert prices.request(case, costs("host", "network"), 2) is None


def test_the_library_answers_by_row_and_size() -> None:
    case = Case(Shape.parse("2x2"), "1gbit", (KIB, MIB))
    asked = prices.request(case, costs("host", "network"), cores=8)
    assert asked
    found = prices.seconds(prices.simulate(LIBRARY, asked))
    assert found["ring", MIB] > found["ring", KIB] > 0
    # One crossing of the wire, at least.
    assert found["direct/ring", MIB] >= MIB / 125e6
    with pytest.raises(build.BuildError, match="sizes"):
        prices.simulate(LIBRARY, asked | {"sizes": []})
