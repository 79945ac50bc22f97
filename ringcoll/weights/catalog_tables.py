"""The part of the catalog that says which holder serves which shard of which table.

A shard has *holders*: the first one is its *primary*, the others are *backups*. All of them have
every push that was acknowledged. A *filling* holder is being sent a copy of the shard, and has
nothing that counts yet. The *epoch* of a shard grows with every change of these. Holders that were
removed, but may be alive, are remembered as *away* if the shard has no other holder: the first of
them that joins again becomes the primary. A shard without holders and without any that are away is
lost.

A record of a table is never changed: a change makes a new one. So a view of all tables is a copy of
one dictionary (:meth:`Tables.view`), and costs little.

===========  =======================================================================================
``uid``      random text, which no other table has, not even a later one of the same name
``spec``     what the table is, as the library takes it
``from``     the version that the table begins with (ringcoll/tables/saved.py), or null
``workers``  [[client, node's id] ...]: those that take part in its clocks from the beginning
``shards``   [{"epoch", "since": the first epoch of this primary, "holders": [id ...],
             "filling": id or null, "away": [id ...]} ...]
===========  =======================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

Json = dict[str, Any]
View = Mapping[str, Json]


class Tables:
    """All tables by name. Deterministic, as the catalog is."""

    def __init__(self, records: dict[str, Json] | None = None) -> None:
        self.records: dict[str, Json] = records or {}

    def view(self) -> View:
        """All tables as they are now. Later operations do not change it."""
        return dict(self.records)

    def awaited(self) -> set[str]:
        """The holders that are away and that shards wait for."""
        shards = (shard for record in self.records.values() for shard in record["shards"])
        return {holder for shard in shards for holder in shard["away"]}

    # Operations. Each changes nothing if what it names is not there any more.

    def make(self, operation: Json, members: Collection[str]) -> None:
        """A table is made: "name" and "record". Nothing happens if there is a table of this name,
        or if all holders of some shard have left meanwhile."""
        record = operation["record"]
        shards = [
            shard | {"holders": _among(shard["holders"], members)} for shard in record["shards"]
        ]
        if operation["name"] not in self.records and all(shard["holders"] for shard in shards):
            self.records[operation["name"]] = record | {"shards": shards}

    def drop(self, operation: Json) -> None:
        """A table is dropped: "name" and "uid"."""
        record = self.records.get(operation["name"])
        if record is not None and record["uid"] == operation["uid"]:
            del self.records[operation["name"]]

    def change(self, operation: Json, members: Collection[str]) -> None:
        """A shard gets other holders: "table", "uid", "shard", "epoch", "holders", "filling".
        Nothing happens if its epoch is not this one."""
        name, index = operation["table"], operation["shard"]
        record = self.records.get(name)
        if record is None or record["uid"] != operation["uid"]:
            return
        shard = record["shards"][index]
        if shard["epoch"] != operation["epoch"]:
            return
        filling = operation["filling"] if operation["filling"] in members else None
        holders = _among(operation["holders"], members)
        if holders and (holders, filling) != (shard["holders"], shard["filling"]):
            shards = list(record["shards"])
            shards[index] = _state(shard, holders, filling)
            self.records[name] = record | {"shards": shards}

    # Holders that come and go.

    def add(self, holder: str, having: Mapping[str, Mapping[str, int]]) -> None:
        """A holder joins: ``having`` is uid -> {shard: epoch} of all that it still has. It becomes
        the primary of those shards that have waited for it, and what else it has is old."""

        def change(uid: str, index: int, shard: Json) -> Json:
            epoch = having.get(uid, {}).get(str(index))
            if holder not in shard["away"]:
                return shard
            if epoch is None or epoch > shard["epoch"]:
                return shard | {"away": [other for other in shard["away"] if other != holder]}
            return _state(shard, [holder])

        self._change_all(change)

    def remove(self, silent: Collection[str], ended: Collection[str]) -> None:
        """Holders are removed: those that are silent may come back."""
        gone = {*silent, *ended}

        def change(uid: str, index: int, shard: Json) -> Json:
            if not gone.intersection([*shard["holders"], shard["filling"]]):
                return shard
            holders = [holder for holder in shard["holders"] if holder not in gone]
            if not holders:
                away = [holder for holder in shard["holders"] if holder in silent]
                return _state(shard, [], away=away)
            filling = None if shard["filling"] in gone else shard["filling"]
            return _state(shard, holders, filling)

        self._change_all(change)

    def forget(self, ended: Collection[str]) -> None:
        """Holders that were away have ended."""

        def change(uid: str, index: int, shard: Json) -> Json:
            away = [holder for holder in shard["away"] if holder not in ended]
            return shard if away == shard["away"] else shard | {"away": away}

        self._change_all(change)

    def _change_all(self, change: Callable[[str, int, Json], Json]) -> None:
        for name, record in self.records.items():
            shards = [change(record["uid"], i, shard) for i, shard in enumerate(record["shards"])]
            if any(new is not old for new, old in zip(shards, record["shards"], strict=True)):
                self.records[name] = record | {"shards": shards}


def new_record(
    spec: Json, uid: str, workers: list[Any], holders: list[list[str]], version: int | None = None
) -> Json:
    """The record of a new table, given the holders of each shard."""
    shards = [_state(None, each) for each in holders]
    return {"uid": uid, "spec": spec, "from": version, "workers": workers, "shards": shards}


def is_lost(shard: Json) -> bool:
    """Whether nobody has the shard, and nobody will bring it back."""
    return not shard["holders"] and not shard["away"]


def _state(
    before: Json | None,
    holders: list[str],
    filling: str | None = None,
    away: list[str] | None = None,
) -> Json:
    """What a shard has after ``before``."""
    epoch = 1 if before is None else before["epoch"] + 1
    stays = before is not None and holders[:1] == before["holders"][:1]
    since = before["since"] if before is not None and stays else epoch
    shard: Json = {"epoch": epoch, "since": since, "holders": holders}
    return shard | {"filling": filling, "away": away or []}


def _among(holders: list[str], members: Collection[str]) -> list[str]:
    return [holder for holder in holders if holder in members]
