"""``ringcoll doctor`` under a launcher: examines every pair of hosts, and names those that deviate.

Rank 0 leads the ranks (:mod:`ringcoll.cluster`) and prints. Pure functions judge the measurements
(:mod:`~ringcoll.checkup.verdict`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ringcoll.checkup.speeds import suspects
from ringcoll.checkup.verdict import judge
from ringcoll.cluster import Leader
from ringcoll.cluster.hosts import Host, encode_views, rounds
from ringcoll.cluster.pair import Aims, View
from ringcoll.errors import Error
from ringcoll.findings import Finding
from ringcoll.info import library_info

_EVERYTHING = Aims(round_trip=True, path_mtu=True, rate_s=0.2)


@dataclass
class Checkup:
    """The result on rank 0. ``views`` are by (observing host, observed host), as numbers in
    ``hosts``."""

    hosts: list[Host]
    views: dict[tuple[int, int], View]
    findings: list[Finding]

    def as_json(self) -> dict[str, Any]:
        return {
            "hosts": [asdict(host) for host in self.hosts],
            "views": encode_views(self.hosts, self.views),
        }


def check(leader: Leader) -> Checkup:
    """Examines the hosts of a job. The two hosts of a pair examine each other one after the other,
    so that their flows do not share a link that is narrower than their own."""
    for pairs in rounds(len(leader.hosts)):
        leader.look(pairs, _EVERYTHING)
        leader.look([(b, a) for a, b in pairs], _EVERYTHING)
    leader.look_again(suspects(leader.views), _EVERYTHING)
    findings = judge(leader.reports, leader.size, leader.hosts, leader.views, _agreement())
    return Checkup(leader.hosts, leader.views, findings + leader.unseen())


def _agreement() -> dict[str, str]:
    """How far ranks must agree, by name of the knob (csrc/base/knobs.h)."""
    try:
        return {knob["name"]: knob["agreement"] for knob in library_info()["knobs"]}
    except Error:  # a knob has an invalid value, which is a finding of its own
        return {}
