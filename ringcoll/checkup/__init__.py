"""``ringcoll doctor`` under a launcher: every pair of hosts is examined, and what deviates named.

Rank 0 leads (:mod:`ringcoll.cluster`) and prints. The judgement is pure
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
    """What rank 0 knows in the end."""

    hosts: list[Host]
    views: dict[tuple[int, int], View]
    findings: list[Finding]

    def as_json(self) -> dict[str, Any]:
        return {
            "hosts": [asdict(host) for host in self.hosts],
            "views": encode_views(self.hosts, self.views),
        }


def check(leader: Leader) -> Checkup:
    """Examines the hosts of a job, of each pair one after the other, so that they do not share a
    link that is narrower than their own."""
    for pairs in rounds(len(leader.hosts)):
        leader.look(pairs, _EVERYTHING)
        leader.look([(b, a) for a, b in pairs], _EVERYTHING)
    leader.look_again(suspects(leader.views), _EVERYTHING)
    findings = judge(leader.reports, leader.size, leader.hosts, leader.views, _agreement())
    return Checkup(leader.hosts, leader.views, findings + leader.unseen())


def _agreement() -> dict[str, str]:
    """Of each knob, whether ranks have it alike."""
    try:
        return {knob["name"]: knob["agreement"] for knob in library_info()["knobs"]}
    except Error:  # a value that is refused: among the findings
        return {}
