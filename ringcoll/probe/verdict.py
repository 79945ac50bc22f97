"""Finds out why the places of some hosts are unknown, and which hosts and pairs deviate. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from ringcoll.checkup.paths import find_unreached
from ringcoll.checkup.settings import find_absent
from ringcoll.checkup.speeds import (
    find_slow_hosts,
    find_slow_pairs,
    pairs_of_slow_hosts,
    slow_pairs,
)
from ringcoll.cluster.hosts import Host, Report, Views, some
from ringcoll.findings import FAILED, NOTE, Finding
from ringcoll.probe.structure import Structure


def suspects(structure: Structure, views: Views) -> list[tuple[int, int]]:
    """Views within leaves that seem too slow, and so should be repeated. Pairs of different leaves
    are not judged, since they share links."""
    slow = pairs_of_slow_hosts(views)
    near = [_inside(leaf, views) for leaf in structure.leaves]
    return sorted(pair for each in near for pair in slow_pairs(each) | slow & each.keys())


def find_gaps(
    reports: Mapping[int, Report], size: int, hosts: list[Host], views: Views
) -> list[Finding]:
    """Findings that say why a topology file would lack a host or its place."""
    gaps = list(find_absent(reports, size))
    names = Counter(reports[host.first]["hostname"] for host in hosts)
    for name in [name for name, count in names.items() if count > 1]:
        detail = f"{names[name]} have this name: give each its own in RINGCOLL_HOSTID"
        gaps.append(Finding(f"hosts {name}", FAILED, detail))
    measured = {host for pair, view in views.items() if view.bytes_per_s for host in pair}
    lost = [host.name for number, host in enumerate(hosts) if number not in measured]
    if lost and len(hosts) > 1:
        detail = f"{some(lost)}: measured with no other host, so its place is not known"
        gaps.append(Finding("hosts", FAILED, detail))
    return gaps


def find_odd(hosts: list[Host], views: Views, structure: Structure) -> Iterator[Finding]:
    yield from find_unreached(hosts, views)
    yield from find_slow_hosts(hosts, views)
    for leaf in structure.leaves:
        yield from find_slow_pairs(hosts, _inside(leaf, views))
    if structure.guessed:
        places = structure.places()
        detail = some([f"{hosts[host].name} (in {places[host]})" for host in structure.guessed])
        yield Finding(
            "places",
            NOTE,
            f"{detail}: hardly nearer to these hosts than to others, be it slow, disturbed, or "
            "alone behind a slow link. If it stands elsewhere, correct the file",
        )


def _inside(leaf: list[int], views: Views) -> Views:
    return {(a, b): view for (a, b), view in views.items() if a in leaf and b in leaf}
