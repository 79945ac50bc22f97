"""Which holders get further copies of pieces. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ringcoll.weights.catalog import Catalog, Json


def loads(catalog: Catalog) -> dict[str, int]:
    """The bytes that each member holds."""
    load = dict.fromkeys(catalog.members, 0)
    for pid, copies in catalog.copies.items():
        for holder in copies:
            if holder in load:
                load[holder] += catalog.pieces[pid][2]
    return load


def choose(
    members: Mapping[str, Json], having: Iterable[str], load: Mapping[str, int], busy: Iterable[str]
) -> str | None:
    """The member for the next copy of a piece that the holders ``having`` have: one on a host
    without a copy if there is any, then the one with the fewest bytes, then the most senior.
    Members in ``busy`` do not get any. None if nobody is left."""
    owners = set(having)
    excluded = owners | set(busy)
    hosts = {members[holder]["host"] for holder in owners if holder in members}
    others = [member for member in members if member not in excluded]
    if not others:
        return None
    return min(others, key=lambda m: (members[m]["host"] in hosts, load.get(m, 0)))
