"""Who looks at whom, when it is supposed who is near whom. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from ringcoll.cluster.hosts import rounds
from ringcoll.probe.structure import Partition, Structure

Pairs = list[tuple[int, int]]


def rounds_over(structure: Structure) -> Iterator[Pairs]:
    """Every pair once, in rounds in which each host has one partner at most, and in which all hosts
    of a group meet others of their group, or all meet those of another: so each uplink carries as
    much as its hosts can ask of it, and as much for each of its pairs."""
    return _rounds(list(range(structure.hosts)), structure.levels[::-1])


def _rounds(members: list[int], levels: list[Partition]) -> Iterator[Pairs]:
    """``levels``: the largest groups first."""
    if not levels:
        for pairs in rounds(len(members)):
            yield [(members[a], members[b]) for a, b in pairs]
        return
    groups = [group for group in levels[0] if set(group) <= set(members)]
    yield from _across(groups)
    inside = (_rounds(group, levels[1:]) for group in groups)
    for together in zip_longest(*inside, fillvalue=[]):
        yield [pair for pairs in together for pair in pairs]


def _across(groups: Partition) -> Iterator[Pairs]:
    """The pairs of different groups: groups meet as hosts do, and while two of them meet, their
    hosts go round."""
    turns = max(map(len, groups))
    for meet in rounds(len(groups)):
        for turn in range(turns):
            yield [pair for a, b in meet for pair in _turned(groups[a], groups[b], turn, turns)]


def _turned(group: list[int], other: list[int], turn: int, turns: int) -> Pairs:
    """As if both had ``turns`` hosts; those that are not there are left out."""
    met = ((host, (place + turn) % turns) for place, host in enumerate(group))
    return [(host, other[place]) for host, place in met if place < len(other)]
