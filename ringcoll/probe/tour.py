"""The order in which pairs of hosts are measured when a structure is assumed. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from ringcoll.cluster.hosts import rounds
from ringcoll.probe.structure import Partition, Structure

Pairs = list[tuple[int, int]]


def rounds_over(structure: Structure) -> Iterator[Pairs]:
    """Every pair once, in rounds in which each host has at most one partner. In a round, either all
    hosts of a group meet hosts of their own group, or all meet hosts of one other group. So each
    uplink is fully loaded, and equally for each of its pairs."""
    return _rounds(list(range(structure.hosts)), structure.levels[::-1])


def _rounds(members: list[int], levels: list[Partition]) -> Iterator[Pairs]:
    """The rounds over ``members``. ``levels`` begins with the largest groups."""
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
    """The pairs of hosts of different groups. Groups meet in the rounds of a tournament; while two
    groups meet, each host of one meets all hosts of the other in turn."""
    turns = max(map(len, groups))
    for meet in rounds(len(groups)):
        for turn in range(turns):
            yield [pair for a, b in meet for pair in _turned(groups[a], groups[b], turn, turns)]


def _turned(group: list[int], other: list[int], turn: int, turns: int) -> Pairs:
    """The pairs of one turn. Both groups are padded to ``turns`` hosts, and pairs with a padding
    host are left out."""
    met = ((host, (place + turn) % turns) for place, host in enumerate(group))
    return [(host, other[place]) for host, place in met if place < len(other)]
