"""``ringcoll probe``: measures latency and rate of every pair of hosts of a job, and finds which
hosts are near one another.

Rank 0 leads the ranks (:mod:`ringcoll.cluster`) and writes the results. Pure functions judge the
measurements: :mod:`~ringcoll.probe.structure` finds levels, :mod:`~ringcoll.probe.verdict` finds
hosts and pairs that deviate.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from ringcoll.cluster import Leader
from ringcoll.cluster.hosts import Host, encode_views, rounds
from ringcoll.cluster.pair import Aims, View
from ringcoll.findings import FAILED, Finding
from ringcoll.probe.structure import Structure, find_structure
from ringcoll.probe.tour import Pairs, rounds_over
from ringcoll.probe.verdict import find_gaps, find_odd, suspects

_ROUND_TRIP = Aims(round_trip=True)
_RATE = Aims(rate_s=0.1, company_s=0.05)
_ALONE = Aims(round_trip=True, rate_s=0.1)


@dataclass
class Survey:
    """The result on rank 0. ``views`` are by (observing host, observed host), as numbers in
    ``hosts``. ``gaps``: why a topology file cannot have the places of all hosts. ``odd``: hosts and
    pairs that deviate."""

    hosts: list[Host]
    views: dict[tuple[int, int], View]
    structure: Structure
    gaps: list[Finding]
    odd: list[Finding]

    @property
    def findings(self) -> list[Finding]:
        return self.gaps + self.odd

    def places(self) -> dict[str, str]:
        """The places of the hosts, by name. Hosts of one group follow one another."""
        return {self.hosts[host].name: place for host, place in self.structure.places().items()}

    def topology_file(self) -> bytes:
        """The content of a file for RINGCOLL_TOPOLOGY."""
        return (json.dumps(self.places(), indent=2, ensure_ascii=False) + "\n").encode()

    def as_json(self) -> dict[str, Any]:
        return {
            "places": self.places(),
            "hosts": [asdict(host) for host in self.hosts],
            "views": encode_views(self.hosts, self.views),
            "findings": [asdict(finding) for finding in self.findings],
        }


def survey(leader: Leader) -> Survey:
    """Measures all pairs. If there seem to be groups, measures all pairs again, in rounds that load
    the links between groups evenly; this second pass counts. Pairs that still deviate are measured
    again alone."""
    count = len(leader.hosts)
    _measure(leader, rounds(count))
    found = find_structure(count, leader.views)
    unseen: list[Finding] = []
    if found.levels:
        before, leader.views = leader.views, {}
        _measure(leader, rounds_over(found))
        unseen = leader.unseen()  # only of the second pass, which counts
        leader.views = before | leader.views
        found = find_structure(count, leader.views)
    leader.look_again(suspects(found, leader.views), _ALONE)
    found = find_structure(count, leader.views)
    gaps = find_gaps(leader.reports, leader.size, leader.hosts, leader.views)
    # With some pairs missing, the groups that were found may be wrong.
    gaps += [replace(finding, status=FAILED) for finding in unseen or leader.unseen()]
    odd = list(find_odd(leader.hosts, leader.views, found))
    return Survey(leader.hosts, leader.views, found, gaps, odd)


def _measure(leader: Leader, tour: Iterable[Pairs]) -> None:
    """Measures pairs, both hosts of a pair at the same time, as a rank of a ring sends and
    receives. Round trips are measured first, while no host sends data."""
    for pairs in tour:
        both = pairs + [(b, a) for a, b in pairs]
        leader.look(both, _ROUND_TRIP)
        leader.look(both, _RATE)
