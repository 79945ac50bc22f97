"""The catalog: the state that all holders of a store have alike.

It says who the holders are, which versions there are, of which pieces they consist, and where
copies of the pieces lie. It changes by operations alone, and :meth:`Catalog.apply` is
deterministic. So holders that have applied the same operations have the same catalog. It has no
clock, no threads and no I/O.

All parts are plain dictionaries and lists, so that a catalog can be sent as JSON:

============  ======================================================================================
``identity``  random text, which no other store has
``members``   holder's id -> {"addresses", "host", "leaf", "serves", "client"}; by seniority
``versions``  number -> {"n", "uid", "index", "metadata", "time", "bytes", "tensors"}; ``tensors``
              is name -> [dtype, shape, [piece id ...]]
``pieces``    piece id -> [offset, shape, bytes, checksum]
``copies``    piece id -> {holder's id: [region, byte offset]}
``regions``   holder's id -> {region: handle as base64}
``away``      id of a removed holder that may be alive -> {"info", "copies"}, like in ``members``
              and {piece id: [region, byte offset]}
``groups``    writers' group -> [its last sequence number, the version that this made]
``tables``    parameter tables and who serves them (:mod:`ringcoll.weights.catalog_tables`)
============  ======================================================================================
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from ringcoll.weights.catalog_tables import Tables

Json = dict[str, Any]

_MOST_AWAY = 256
_MOST_GROUPS = 4096  # groups that are remembered; a commit of an older one could be done twice


class Catalog:
    """The metadata of one store. Not thread-safe: its owner has a lock."""

    def __init__(
        self,
        members: Json | None = None,
        keep: int = 2,
        replicas: int | None = None,
        identity: str = "",
    ) -> None:
        self.identity = identity
        self.keep = keep
        self.replicas = replicas
        self.newest = 0
        self.revision = 0  # changes when copies of existing pieces change
        self.members: dict[str, Json] = dict(members or {})
        self.versions: dict[int, Json] = {}
        self.pieces: dict[str, list[Any]] = {}
        self.copies: dict[str, dict[str, list[int]]] = {}
        self.regions: dict[str, dict[str, str]] = {}
        self.away: dict[str, Json] = {}
        self.groups: dict[str, list[int]] = {}
        self.tables = Tables()
        self._uses: dict[str, int] = {}  # piece id -> how many versions have it

    # Whole catalogs.

    def snapshot(self) -> Json:
        """A copy of everything, which JSON can carry and :meth:`from_snapshot` reads."""
        state = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        state["versions"] = list(self.versions.values())
        state["tables"] = self.tables.records
        return json.loads(json.dumps(state))  # type: ignore[no-any-return]

    @classmethod
    def from_snapshot(cls, state: Json) -> Catalog:
        """The catalog of :meth:`snapshot`. Takes over the parts of ``state``."""
        catalog = cls()
        for name in vars(catalog):
            if name in state:
                setattr(catalog, name, state[name])
        catalog.versions = {version["n"]: version for version in state["versions"]}
        catalog.tables = Tables(state.get("tables"))
        for version in catalog.versions.values():
            catalog._count(version, 1)
        return catalog

    # What readers ask.

    def newest_number(self, index: int) -> int | None:
        """The newest version that was appended no later than ``index`` of the log."""
        numbers = [n for n, version in self.versions.items() if version["index"] <= index]
        return max(numbers, default=None)

    def manifest(self, number: int) -> Json:
        """All that a reader of a version needs: its record, its pieces, their copies, and the
        regions, and where all holders are. What changes later is copied: a reader may be in this
        process."""
        version = self.versions[number]
        pids = list(pieces_of(version))
        copies = {pid: dict(self.copies.get(pid, {})) for pid in pids}
        used = {(h, str(place[0])) for each in copies.values() for h, place in each.items()}
        regions: dict[str, dict[str, str]] = {}
        for holder, region in sorted(used):
            regions.setdefault(holder, {})[region] = self.regions[holder][region]
        return {
            "version": version,
            "revision": self.revision,
            "pieces": {pid: self.pieces[pid] for pid in pids},
            "copies": copies,
            "regions": regions,
            "holders": dict(self.members),
        }

    def wanted_copies(self) -> int:
        """How many copies of each piece there should be, as far as there are holders."""
        if self.replicas is None:
            hosts = {member["host"] for member in self.members.values()}
            wanted = 2 if len(hosts) > 1 else 1
        else:
            wanted = 1 + self.replicas
        return min(wanted, len(self.members))

    def lacking(self) -> list[str]:
        """The pieces that have a copy, but not as many as wanted."""
        wanted = self.wanted_copies()
        return [pid for pid in self.pieces if 0 < len(self.copies.get(pid, ())) < wanted]

    def unreadable(self, number: int) -> list[str]:
        """The names of the tensors of a version of which no member has some piece."""
        tensors = self.versions[number]["tensors"]
        return [
            name
            for name, (_, _, pids) in tensors.items()
            if any(not self.copies.get(pid) for pid in pids)
        ]

    def retirable(self, spared: Iterable[int]) -> list[int]:
        """The versions older than the ``keep`` newest, but for the ``spared``."""
        spare = set(spared)
        return [n for n in sorted(self.versions)[: -self.keep] if n not in spare]

    # Operations. Each returns the numbers of the versions that it has lost.

    def apply(self, operation: Json) -> list[int]:
        """Applies one operation of the log. Operations that name what does not exist any more do
        nothing to it."""
        handler = getattr(self, "_apply_" + operation["op"])
        lost: list[int] = handler(operation) or []
        return lost

    def _apply_add(self, operation: Json) -> list[int]:
        """A holder joins, with what it still has: "id", "info", "copies", "regions", "shards"."""
        holder = operation["id"]
        self.revision += 1
        self.away.pop(holder, None)
        self.members.pop(holder, None)  # it is the most junior now
        self.members[holder] = operation["info"]
        self._add_copies({holder: operation["copies"]}, {holder: operation["regions"]})
        self.tables.add(holder, operation.get("shards", {}))
        return self._drop_lost()

    def _apply_remove(self, operation: Json) -> list[int]:
        """Members are removed: "ended" for ever, "silent" ones may come back with their copies."""
        self.revision += 1
        for holder in operation["silent"]:
            if holder in self.members:  # even without copies: it has to be told when it is back
                copies = self._copies_of(holder)
                self.away[holder] = {"info": self.members[holder], "copies": copies}
        for holder in [*operation["silent"], *operation["ended"]]:
            self.members.pop(holder, None)
            self.regions.pop(holder, None)
            for each in self.copies.values():
                each.pop(holder, None)
        self.tables.remove(operation["silent"], operation["ended"])
        self._limit_away()
        return self._drop_lost()

    def _limit_away(self) -> None:
        """Forgets holders that nothing waits for, and that have the fewest copies."""
        awaited = self.tables.awaited()
        while len(self.away) > _MOST_AWAY:
            least = min(self.away, key=lambda h: (h in awaited, len(self.away[h]["copies"])))
            del self.away[least]
            self.tables.forget([least])

    def _apply_forget(self, operation: Json) -> list[int]:
        """Holders that were away have ended: "ids"."""
        for holder in operation["ids"]:
            self.away.pop(holder, None)
        self.tables.forget(operation["ids"])
        return self._drop_lost()

    def _apply_table(self, operation: Json) -> None:
        self.tables.make(operation, self.members)

    def _apply_shard(self, operation: Json) -> None:
        self.tables.change(operation, self.members)

    def _apply_drop_table(self, operation: Json) -> None:
        self.tables.drop(operation)

    def _apply_version(self, operation: Json) -> list[int]:
        """A version is appended: "record", "pieces" and "copies" that are new, "regions", and
        "retire", the versions that go."""
        record = operation["record"]
        number = record["n"]
        self.newest = number
        self.versions[number] = record
        self.pieces.update(operation["pieces"])
        self._count(record, 1)
        self._add_copies(operation["copies"], operation["regions"])
        group, sequence = operation["group"], operation["sequence"]
        self.groups.pop(group, None)
        self.groups[group] = [sequence, number]
        while len(self.groups) > _MOST_GROUPS:
            del self.groups[next(iter(self.groups))]
        self._apply_retire(operation)
        return self._drop_lost()

    def _apply_retire(self, operation: Json) -> None:
        """Versions go: "retire"."""
        for number in operation["retire"]:
            self._drop(number)
        if operation["retire"]:
            self._drop_unused_regions()

    def _apply_copies(self, operation: Json) -> None:
        """Holders have got copies: "copies" is holder -> {piece: place}, and "regions"."""
        self.revision += 1
        self._add_copies(operation["copies"], operation["regions"])

    # Parts of operations.

    def _add_copies(
        self, copies: dict[str, dict[str, list[int]]], regions: dict[str, dict[str, str]]
    ) -> None:
        for holder, places in copies.items():
            if holder not in self.members:
                continue
            for pid, place in places.items():
                if pid in self.pieces:
                    self.copies.setdefault(pid, {})[holder] = place
            if regions.get(holder):
                self.regions.setdefault(holder, {}).update(regions[holder])

    def _copies_of(self, holder: str) -> dict[str, list[int]]:
        return {pid: each[holder] for pid, each in self.copies.items() if holder in each}

    def _count(self, version: Json, by: int) -> None:
        for pid in pieces_of(version):
            uses = self._uses.get(pid, 0) + by
            if uses > 0:
                self._uses[pid] = uses
                continue
            self._uses.pop(pid, None)
            self.pieces.pop(pid, None)
            self.copies.pop(pid, None)
            for away in self.away.values():
                away["copies"].pop(pid, None)

    def _drop(self, number: int) -> None:
        version = self.versions.pop(number, None)
        if version is not None:
            self._count(version, -1)

    def _drop_lost(self) -> list[int]:
        """Drops versions with a piece that nobody has any more."""
        kept = {pid for away in self.away.values() for pid in away["copies"]}
        kept.update(pid for pid, each in self.copies.items() if each)
        lost = [
            n
            for n, version in self.versions.items()
            if any(pid not in kept for pid in pieces_of(version))
        ]
        for number in lost:
            self._drop(number)
        return lost

    def _drop_unused_regions(self) -> None:
        used: dict[str, set[str]] = {}
        for each in self.copies.values():
            for holder, place in each.items():
                used.setdefault(holder, set()).add(str(place[0]))
        for holder, regions in self.regions.items():
            keep = used.get(holder, set())
            self.regions[holder] = {name: h for name, h in regions.items() if name in keep}


def pieces_of(version: Json) -> Iterator[str]:
    """The ids of the pieces of a version."""
    for _, _, pids in version["tensors"].values():
        yield from pids


def holders_of(catalog: Catalog, number: int) -> list[str]:
    """The members that have any piece of a version, the most senior first."""
    having = {h for pid in pieces_of(catalog.versions[number]) for h in catalog.copies.get(pid, ())}
    return [holder for holder in catalog.members if holder in having]
