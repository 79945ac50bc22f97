"""Finds groups of near hosts from measurements between hosts. Pure.

docs/cluster.md, "Which hosts are near one another: ringcoll probe", describes the method.

The distance of a pair is how far its rate and round trip fall short of the best that both its hosts
reach with any other. So a slow host is not far from all others, and a host of another speed is not
a rack of its own. Groups are joined, the nearest first. Where the next distance is much greater
than those before, there is a level.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ringcoll.cluster.hosts import Views

Matrix = NDArray[np.float64]  # by numbers of hosts; NaN: not known
Partition = list[list[int]]  # groups of hosts, ordered by first host; each group is sorted

# How many times further apart the groups of a level are than the groups that they consist of. Equal
# links differ less by chance (by a fifth, in two measurements).
_TIMES_FURTHER = 1.6
# The part of a round trip that Python and the machines cause. Differences below it mean nothing.
_OWN_US = 100.0
_LEVELS = ("leaf", "spine")  # the library's names: csrc/topology/topology.cc


@dataclass(frozen=True)
class Structure:
    """``levels`` are partitions of the hosts, the one with the smallest groups first; empty if all
    hosts are alike. ``guessed`` are hosts that are hardly nearer to their own leaf than to
    another."""

    hosts: int
    levels: list[Partition]
    guessed: list[int]

    @property
    def leaves(self) -> Partition:
        return self.levels[0] if self.levels else [list(range(self.hosts))]

    def places(self) -> dict[int, str]:
        """The place of each host, such as "spine1.leaf2". Hosts of one group follow one another."""
        levels = [*enumerate(self.levels or [self.leaves])]
        paths: dict[int, list[str]] = {host: [] for host in range(self.hosts)}
        numbers: dict[int, list[int]] = {host: [] for host in paths}
        for level, groups in reversed(levels):
            for number, group in enumerate(groups, 1):
                for host in group:
                    paths[host].append(group_name(level, number))
                    numbers[host].append(number)
        return {host: ".".join(paths[host]) for host in sorted(paths, key=numbers.__getitem__)}

    def distance(self, a: int, b: int) -> int:
        """0: in the same leaf. 1: in the same spine, but different leaves. And so on."""
        together = (any(a in group and b in group for group in level) for level in self.levels)
        return next((i for i, joined in enumerate(together) if joined), len(self.levels))


def level_name(level: int) -> str:
    return _LEVELS[level] if level < len(_LEVELS) else f"level{level + 1}"


def group_name(level: int, number: int) -> str:
    name = level_name(level)
    return f"{name}-{number}" if name[-1].isdigit() else f"{name}{number}"


def rates_of(hosts: int, views: Views) -> Matrix:
    """Rates in bytes per second, from the host of the row to the host of the column."""
    rates = np.full((hosts, hosts), np.nan)
    for (to, of), view in views.items():
        if view.bytes_per_s:
            rates[of, to] = view.bytes_per_s
    return rates


def trips_of(hosts: int, views: Views) -> Matrix:
    """Round trips in microseconds: the shorter of the two hosts' measurements."""
    trips = np.full((hosts, hosts), np.nan)
    for pair, view in views.items():
        if view.round_trip_us:
            trips[pair] = view.round_trip_us
    shorter: Matrix = np.fmin(trips, trips.T)
    return shorter


def find_structure(hosts: int, views: Views) -> Structure:
    distances = _distances(rates_of(hosts, views), trips_of(hosts, views))
    levels: list[Partition] = []
    whole = [list(range(hosts))]
    for found in reversed(list(_steps(distances))):
        level = _settle(found, levels[0] if levels else whole, distances)
        if level not in [whole, *levels]:
            levels.insert(0, level)
    return Structure(hosts, levels, _doubtful(levels[0], distances) if levels else [])


def _distances(rates: Matrix, trips: Matrix) -> Matrix:
    """Distances of pairs: the logarithm of the factor by which they fall short. NaN if no rate is
    known."""
    if np.isnan(rates).all():
        return rates
    out, into = np.fmax.reduce(rates, axis=1), np.fmax.reduce(rates, axis=0)
    short = np.log(np.minimum(out[:, None], into[None, :]) / rates)
    short = np.where(np.isnan(short), short.T, short)
    own = np.fmin.reduce(trips, axis=1)
    late = np.log((trips + _OWN_US) / (np.maximum(own[:, None], own[None, :]) + _OWN_US))
    total: Matrix = (short + short.T) / 2 + np.nan_to_num(late)
    return total


def _joins(distances: Matrix) -> Iterator[tuple[float, Partition]]:
    """Hierarchical clustering by average linkage. For each join, yields the mean distance of the
    two joined groups over the known pairs, and all groups afterwards. The distance never falls.
    Unknown pairs do not separate groups."""
    known = ~np.isnan(distances)
    np.fill_diagonal(known, False)
    sums, counts = np.where(known, distances, 0.0), known.astype(float)
    groups = [[host] for host in range(len(distances))]
    height = 0.0
    while len(groups) > 1:
        with np.errstate(divide="ignore", invalid="ignore"):
            means = np.where(counts > 0, sums / counts, np.inf)
        means[np.tril_indices(len(groups))] = np.nan
        a, b = divmod(int(np.nanargmin(means)), len(groups))
        if means[a, b] < np.inf:
            height = max(height, float(means[a, b]))
        for matrix in (sums, counts):
            matrix[a] += matrix[b]
            matrix[:, a] += matrix[:, b]
        sums, counts = (np.delete(np.delete(each, b, 0), b, 1) for each in (sums, counts))
        groups[a] = sorted(groups[a] + groups.pop(b))
        yield height, sorted(groups)


def _steps(distances: Matrix) -> Iterator[Partition]:
    """Yields the groups before each join whose distance is much greater than that of the join
    before. A level needs at least two groups of several hosts; a single far host makes none."""
    before, groups = 0.0, [[host] for host in range(len(distances))]
    for height, joined in _joins(distances):
        further = height - before >= math.log(_TIMES_FURTHER)
        if further and sum(len(group) > 1 for group in groups) > 1:
            yield groups
        before, groups = height, joined


def _settle(groups: Partition, above: Partition, distances: Matrix) -> Partition:
    """The groups, after each single host has joined the nearest group within the same group of the
    level above."""
    settled: Partition = []
    for whole in above:
        inside = [group for group in groups if set(group) <= set(whole)]
        several = [list(group) for group in inside if len(group) > 1]
        single = [group[0] for group in inside if len(group) == 1]
        if not several:
            settled.append(whole)
            continue
        nearest = [(min(several, key=lambda g: _mean(distances[host, g])), host) for host in single]
        for group, host in nearest:
            group.append(host)
        settled += [sorted(group) for group in several]
    return sorted(settled)


def _doubtful(leaves: Partition, distances: Matrix) -> list[int]:
    found = []
    for leaf in leaves:
        for host in leaf:
            own = _mean(distances[host, [mate for mate in leaf if mate != host]])
            others = [_mean(distances[host, other]) for other in leaves if other is not leaf]
            if min(others) - own < math.log(_TIMES_FURTHER) / 2:
                found.append(host)
    return sorted(found)


def _mean(distances: Matrix) -> float:
    known = distances[~np.isnan(distances)]
    return float(known.mean()) if len(known) else math.inf
