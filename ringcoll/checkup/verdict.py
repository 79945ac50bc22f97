"""Judges the reports and views of all ranks: which hosts deviate, why, and what to do. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from ringcoll.checkup.paths import find_narrow, find_unreached
from ringcoll.checkup.settings import compare_settings, find_absent, find_containers, find_failures
from ringcoll.checkup.speeds import find_slow_hosts, find_slow_pairs
from ringcoll.cluster.hosts import Host, Report, Views
from ringcoll.findings import Finding


def judge(
    reports: Mapping[int, Report],
    size: int,
    hosts: list[Host],
    views: Views,
    agreement: Mapping[str, str],
) -> list[Finding]:
    """All findings about the job as a whole; an empty list if all is well. ``views`` are by numbers
    of ``hosts``. ``agreement`` says on which knobs ranks must agree."""
    return [
        *find_absent(reports, size),
        *find_failures(reports),
        *compare_settings(reports, hosts, agreement),
        *find_containers(reports, hosts),
        *find_unreached(hosts, views),
        *find_narrow(hosts, views),
        *find_slow_hosts(hosts, views),
        *find_slow_pairs(hosts, views),
    ]
