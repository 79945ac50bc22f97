"""Finds hosts and pairs that are slower than the others. Pure.

The best measurement of a host with any other is compared with the median over all hosts. A pair is
compared with the best measurements of both its hosts. So a slow host is named once, not all of its
pairs, and a slow pair does not make its hosts look slow.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping

from ringcoll.checkup.show import format_rate
from ringcoll.cluster.hosts import Host, Views, some
from ringcoll.findings import FAILED, NOTE, Finding

Values = Mapping[tuple[int, int], float]
IsOdd = Callable[[float, float], bool]

# How far a rate or a round trip may deviate from the usual one. A busy machine deviates less by
# chance, a wrong cable, switch or interface deviates more.
_TIMES_SLOWER = 2.0
_TIMES_LATER, _LATER_US = 4.0, 300.0


def _rates(views: Views) -> dict[tuple[int, int], float]:
    """Rates by (sender, receiver). A view measures the rate towards the observing host. Views over
    another address than the first are left out."""
    return {(b, a): v.bytes_per_s for (a, b), v in views.items() if v.bytes_per_s and not v.error}


def _trips(views: Views) -> dict[tuple[int, int], float]:
    """Round trips per second by (observing host, observed host). More is better, as with rates, so
    one rule serves both."""
    seen = {pair: view.round_trip_us for pair, view in views.items() if not view.error}
    return {pair: 1e6 / trip for pair, trip in seen.items() if trip}


def _rate_is_odd(value: float, usual: float) -> bool:
    return value * _TIMES_SLOWER < usual


def _trip_is_odd(value: float, usual: float) -> bool:
    return value * _TIMES_LATER < usual and 1e6 / value - 1e6 / usual > _LATER_US


def _best(values: Values, side: int) -> dict[int, float]:
    best: dict[int, float] = {}
    for pair, value in values.items():
        best[pair[side]] = max(value, best.get(pair[side], 0.0))
    return best


def _odd_hosts(values: Values, side: int, is_odd: IsOdd) -> dict[int, tuple[float, float]]:
    """Host → (its best value, the median of the best values). Empty for fewer than three hosts."""
    best = _best(values, side)
    if len(best) < 3:
        return {}
    usual = statistics.median_high(best.values())
    return {number: (value, usual) for number, value in best.items() if is_odd(value, usual)}


def _odd_pairs(values: Values, is_odd: IsOdd) -> dict[tuple[int, int], tuple[float, float]]:
    """Pair → (its value, the expected value), for pairs that fall short of both hosts' best."""
    out, into = _best(values, 0), _best(values, 1)
    expected = {pair: min(out[pair[0]], into[pair[1]]) for pair in values}
    return {
        pair: (value, expected[pair])
        for pair, value in values.items()
        if is_odd(value, expected[pair])
    }


def suspects(views: Views) -> list[tuple[int, int]]:
    """Views that were slower than others, perhaps by chance, and so should be repeated."""
    return sorted(slow_pairs(views) | pairs_of_slow_hosts(views))


def slow_pairs(views: Views) -> set[tuple[int, int]]:
    """Views of pairs that fall short of what both hosts reach with others."""
    rates = _odd_pairs(_rates(views), _rate_is_odd)
    return {*_odd_pairs(_trips(views), _trip_is_odd), *((to, of) for of, to in rates)}


def pairs_of_slow_hosts(views: Views) -> set[tuple[int, int]]:
    """Views of hosts that are slow with all others, in the direction in which they are slow."""
    rates = _of_odd_hosts(_rates(views), _rate_is_odd)
    return {*_of_odd_hosts(_trips(views), _trip_is_odd), *((to, of) for of, to in rates)}


def _of_odd_hosts(values: Values, is_odd: IsOdd) -> set[tuple[int, int]]:
    odd = [_odd_hosts(values, side, is_odd) for side in (0, 1)]
    return {pair for pair in values if pair[0] in odd[0] or pair[1] in odd[1]}


def find_slow_hosts(hosts: list[Host], views: Views) -> Iterator[Finding]:
    rates, trips = _rates(views), _trips(views)
    for side, says in ((0, "sends"), (1, "receives")):
        for number, (value, usual) in _odd_hosts(rates, side, _rate_is_odd).items():
            yield Finding(
                f"host {hosts[number].name}",
                FAILED,
                f"{says} {format_rate(value)} at most, the others {format_rate(usual)}: look at "
                "its cable, port and interface (ethtool), at limits on it (tc qdisc), and at what "
                "else it runs",
            )
    for number, (value, usual) in _odd_hosts(trips, 1, _trip_is_odd).items():
        yield Finding(
            f"host {hosts[number].name}",
            FAILED,
            f"answers after {_trip(value)} at best, the others after {_trip(usual)}: it is busy, "
            "further away, or its interface waits before it interrupts (ethtool -c)",
        )


def find_slow_pairs(hosts: list[Host], views: Views) -> Iterator[Finding]:
    rates, trips = _rates(views), _trips(views)
    yield from _slow_pairs("rate", _odd_pairs(rates, _rate_is_odd), hosts, rates, format_rate)
    yield from _slow_pairs("round trip", _odd_pairs(trips, _trip_is_odd), hosts, trips, _trip)


def _slow_pairs(
    what: str,
    odd: Mapping[tuple[int, int], tuple[float, float]],
    hosts: list[Host],
    values: Values,
    text: Callable[[float], str],
) -> Iterator[Finding]:
    groups = _groups(set(values) - set(odd))
    if odd and len(groups) > 1 and all(len(group) > 1 for group in groups):
        worst = min(value for value, _ in odd.values())
        members = "; ".join(some([hosts[number].name for number in group]) for group in groups)
        yield Finding(
            what,
            NOTE,
            f"{len(groups)} groups of hosts, joined by slower links ({text(worst)}): {members}. "
            "If these are racks, say so by RINGCOLL_TOPOLOGY; ringcoll probe writes the file",
        )
        return
    for (a, b), (value, usual) in sorted(odd.items()):
        yield Finding(
            f"hosts {hosts[a].name} and {hosts[b].name}",
            FAILED,
            f"{what} {text(value)} from the first to the second, where both show {text(usual)} "
            "with others: look at the switches and routes between these two",
        )


def _groups(pairs: set[tuple[int, int]]) -> list[list[int]]:
    """The connected components of a graph with these edges."""
    group: dict[int, set[int]] = {}
    for a, b in pairs:
        joined = group.get(a, {a}) | group.get(b, {b})
        group.update(dict.fromkeys(joined, joined))
    return sorted(sorted(each) for each in {id(each): each for each in group.values()}.values())


def _trip(per_s: float) -> str:
    return f"{1e6 / per_s:.0f} µs"
