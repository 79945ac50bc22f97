"""Answers to readers' questions, from a catalog. Pure functions, for leaders and, while there is no
leader, for any holder."""

from __future__ import annotations

import copy
import difflib

from ringcoll.errors import Gone, InvalidArgument
from ringcoll.weights.catalog import Catalog, Json, holders_of

LATEST = "latest"


def manifest(catalog: Catalog, visible: int, message: Json) -> Json | None:
    """Answers "version" (a number or "latest") with its manifest, or only confirms it if the reader
    says in "have" that it knows it. None: the version will be visible soon.

    Raises Gone if the version is not kept any more or there is none yet, and InvalidArgument if
    there was never such a version.
    """
    number = find(catalog, visible, message["version"])
    if number is None:
        return None
    version = catalog.versions[number]
    if message.get("have") == [number, version["uid"], catalog.revision]:
        return {"version": number, "same": True}
    return {"version": number, "manifest": catalog.manifest(number)}


def find(catalog: Catalog, visible: int, wanted: int | str) -> int | None:
    """The number of a version. None: it will be visible soon. Raises like :func:`manifest`."""
    if wanted == LATEST:
        newest = catalog.newest_number(visible)
        if newest is None:
            raise Gone("the store has no version: commit one, or wait for one with watch()")
        return newest
    number = int(wanted)
    if number in catalog.versions:
        return number if catalog.versions[number]["index"] <= visible else None
    if 0 < number <= catalog.newest:
        kept = ", ".join(map(str, sorted(catalog.versions))) or "none"
        raise Gone(
            f"version {number} is not kept any more (kept: {kept}): lease a version while it is "
            "read, or raise keep="
        )
    raise InvalidArgument(f"there is no version {number}: the newest is {catalog.newest}")


def versions(catalog: Catalog, visible: int) -> Json:
    """Lists the versions, the oldest first."""
    listed = [
        {
            "n": number,
            "metadata": copy.deepcopy(version["metadata"]),  # a program may change what it gets
            "bytes": version["bytes"],
            "time": version["time"],
            "names": len(version["tensors"]),
            "holders": holders_of(catalog, number),
            "unreadable": catalog.unreadable(number),
        }
        for number, version in sorted(catalog.versions.items())
        if version["index"] <= visible
    ]
    return {"versions": listed}


def holders(catalog: Catalog) -> Json:
    """Who the holders are, what they hold, and how many copies are wanted and there."""
    listed = {}
    for holder, info in catalog.members.items():
        held = [pid for pid, copies in catalog.copies.items() if holder in copies]
        size = sum(catalog.pieces[pid][2] for pid in held)
        listed[holder] = {**info, "pieces": len(held), "bytes": size}
    wanted = catalog.wanted_copies()
    had = min((len(copies) for copies in catalog.copies.values()), default=wanted)
    return {
        "holders": listed,
        "keep": catalog.keep,
        "replicas": {"wanted": wanted - 1, "had": max(0, had - 1)},
        "away": {holder: len(away["copies"]) for holder, away in catalog.away.items()},
    }


def unknown_name(name: str, names: list[str]) -> InvalidArgument:
    """The error for a name that a version does not have."""
    near = difflib.get_close_matches(name, names, 3)
    hint = f"; near it: {', '.join(near)}" if near else f"; it has {len(names)} names"
    return InvalidArgument(f"the version has no tensor {name!r}{hint}")
