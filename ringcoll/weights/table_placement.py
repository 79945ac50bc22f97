"""Which holders serve which shards of tables. Pure functions.

Load is counted in *weights* of shards: 1 for most, more for those that are used much more than
others. A server's load is the weight of the shards whose primary it is, in one table and over all.
A move is made only if it lowers the higher of two loads, so moves come to an end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ringcoll.weights.catalog_tables import Json, View

SHARDS_OF_HOLDER = 4  # by default; a holder that joins later can take over that many
MOST_BY_DEFAULT = 256

#: The weight of a shard, by the table's uid and the shard's number.
Weigh = Callable[[str, int], int]


class Step(NamedTuple):
    """A change of one shard: what it shall have instead."""

    table: str
    shard: int
    holders: list[str]
    filling: str | None


class Loads:
    """The loads of servers: in one table and in all, as primaries and as holders."""

    def __init__(self, view: View, weigh: Weigh) -> None:
        self._weigh = weigh
        self._primary: dict[tuple[str, str], int] = {}  # (uid, or "" for all tables; holder)
        self._held: dict[tuple[str, str], int] = {}
        self._idlest: dict[str, str] = {}  # by uid, until some load changes
        self._emptiest: dict[str, str] = {}
        for record in view.values():
            for index, shard in enumerate(record["shards"]):
                if shard["holders"]:
                    self.count(record["uid"], index, shard["holders"], 1)

    def count(self, uid: str, index: int, holders: Sequence[str], sign: int) -> None:
        """Adds the load of a shard, or takes it off if ``sign`` is -1."""
        self._idlest.clear()
        self._emptiest.clear()
        weight = sign * self._weigh(uid, index)
        for table in (uid, ""):
            key = (table, holders[0])
            self._primary[key] = self._primary.get(key, 0) + weight
            for holder in holders:
                self._held[table, holder] = self._held.get((table, holder), 0) + sign

    def replace(self, uid: str, index: int, holders: Sequence[str], others: Sequence[str]) -> None:
        """A shard has other holders."""
        self.count(uid, index, holders, -1)
        self.count(uid, index, others, 1)

    def primary(self, uid: str, holder: str) -> tuple[int, int]:
        """What a server serves: in one table, and in all."""
        return self._primary.get((uid, holder), 0), self._primary.get(("", holder), 0)

    def held(self, uid: str, holder: str) -> tuple[int, int]:
        """How many shards a server holds: of one table, and of all."""
        return self._held.get((uid, holder), 0), self._held.get(("", holder), 0)

    def idlest(self, servers: Iterable[str], uid: str) -> str:
        """The server that serves least."""
        if uid not in self._idlest:
            self._idlest[uid] = min(servers, key=lambda server: self.primary(uid, server))
        return self._idlest[uid]

    def emptiest(self, servers: Iterable[str], uid: str) -> str:
        """The server with the fewest shards."""
        if uid not in self._emptiest:
            self._emptiest[uid] = min(servers, key=lambda server: self.held(uid, server))
        return self._emptiest[uid]

    def is_better(self, uid: str, index: int, holder: str, other: str) -> bool:
        """Whether the load is more even if ``other`` is the primary in place of ``holder``."""
        weight = self._weigh(uid, index)
        (table, every), (its_table, its_every) = self.primary(uid, holder), self.primary(uid, other)
        return (table - its_table - weight, every - its_every - weight) > (0, 0)

    def is_better_held(self, uid: str, holder: str, other: str) -> bool:
        """Whether copies are more even if ``other`` has one in place of ``holder``."""
        (table, every), (its_table, its_every) = self.held(uid, holder), self.held(uid, other)
        return (table - its_table - 1, every - its_every - 1) > (0, 0)


def servers_of(members: Mapping[str, Json]) -> dict[str, Json]:
    """The members that serve shards."""
    return {holder: info for holder, info in members.items() if info.get("serves", True)}


def wanted_holders(servers: Mapping[str, Json], replicas: int | None) -> int:
    """How many holders each shard should have, as far as there are servers."""
    if replicas is None:
        replicas = 1 if len({info["host"] for info in servers.values()}) > 1 else 0
    return min(1 + replicas, len(servers))


def shard_count(servers: int, rows: int | None) -> int:
    """How many shards a table gets if nobody says so. A dense table has ``rows``."""
    count = min(MOST_BY_DEFAULT, SHARDS_OF_HOLDER * servers)
    return count if rows is None else min(count, rows)


def place(
    uid: str, count: int, servers: Mapping[str, Json], wanted: int, loads: Loads
) -> list[list[str]]:
    """The holders of each shard of a new table."""
    placed = []
    for index in range(count):
        holders = [min(servers, key=lambda s: (loads.primary(uid, s), loads.held(uid, s)))]
        while len(holders) < wanted:
            free = {server: info for server, info in servers.items() if server not in holders}
            holders.append(_further(uid, free, _hosts(servers, holders), loads))
        loads.count(uid, index, holders, 1)
        placed.append(holders)
    return placed


def _further(uid: str, free: Mapping[str, Json], hosts: Collection[Any], loads: Loads) -> str:
    """The server for a further copy: not on one of ``hosts`` if there is any, then by its load."""
    return min(free, key=lambda s: (free[s]["host"] in hosts, loads.held(uid, s)))


def _hosts(servers: Mapping[str, Json], holders: Collection[str]) -> set[Any]:
    return {servers[holder]["host"] for holder in holders if holder in servers}


class Planner:
    """Finds what to change, in a view of the tables.

    ``refused(table's uid, shard, server)`` says that a server shall not be asked for a copy now.
    """

    def __init__(
        self,
        view: View,
        servers: Mapping[str, Json],
        wanted: int,
        weigh: Weigh,
        refused: Callable[[str, int, str], bool] = lambda uid, index, server: False,
    ) -> None:
        self._view, self._servers, self._wanted = view, servers, wanted
        self._refused = refused
        self._loads = Loads(view, weigh)
        self._foresee()

    def steps(self, most_filling: int) -> Iterator[Step]:
        """What to change now: at most one change of a shard, and so many shards that are being
        filled at a time. First comes what needs no copy, then what is lacking, then balance."""
        if not self._servers:
            return
        changed: set[tuple[str, int]] = set()
        filling = sum(shard["filling"] is not None for _, _, _, shard in self._all())
        for step in self._cheap_steps():
            changed.add((step.table, step.shard))
            yield step
        for find in (self._lacking, self._together, self._uneven_primaries, self._uneven_copies):
            for step in find(changed):
                if filling >= most_filling:
                    return
                filling += 1
                changed.add((step.table, step.shard))
                yield step

    def _foresee(self) -> None:
        """Counts shards that are being filled as if they had been filled, and the surplus copy were
        given up."""
        for _, uid, index, shard in self._all():
            holders, server = shard["holders"], shard["filling"]
            if not holders or server is None:
                continue
            if len(holders) < self._wanted:
                later = [*holders, server]
            elif self._loads.is_better(uid, index, holders[0], server):
                later = [server, *holders[1:]]
            else:
                later = [*holders[:-1], server]
            self._loads.replace(uid, index, holders, later)

    def _all(self) -> Iterator[tuple[str, str, int, Json]]:
        for name, record in self._view.items():
            for index, shard in enumerate(record["shards"]):
                yield name, record["uid"], index, shard

    def _quiet(self, changed: Collection[tuple[str, int]]) -> Iterator[tuple[str, str, int, Json]]:
        """The shards that can be changed: they have a holder, and none that is being filled."""
        for name, uid, index, shard in self._all():
            if shard["holders"] and shard["filling"] is None and (name, index) not in changed:
                yield name, uid, index, shard

    # Changes among the holders that a shard has.

    def _cheap_steps(self) -> Iterator[Step]:
        for name, uid, index, shard in self._quiet(()):
            # Not in one step: a primary that becomes a backup is asked for each push from then on,
            # and so cannot go on to serve without it.
            holders = self._best_order(uid, index, shard["holders"])
            if holders == shard["holders"] and len(holders) > self._wanted > 0:
                holders = self._without_one(uid, holders)
            if holders != shard["holders"]:
                self._loads.replace(uid, index, shard["holders"], holders)
                yield Step(name, index, holders, None)

    def _best_order(self, uid: str, index: int, holders: list[str]) -> list[str]:
        """The holders, with another primary if that makes the load more even."""
        best = min(holders, key=lambda holder: self._loads.primary(uid, holder))
        if not self._loads.is_better(uid, index, holders[0], best):
            return holders
        return [best, *(holder for holder in holders if holder != best)]

    def _without_one(self, uid: str, holders: list[str]) -> list[str]:
        """Gives up a surplus backup: one whose host has another copy if there is any, then that of
        the server with the most copies."""

        def key(holder: str) -> tuple[bool, tuple[int, int]]:
            rest = [other for other in holders if other != holder]
            shares = len(_hosts(self._servers, rest)) == len(_hosts(self._servers, holders))
            return shares, self._loads.held(uid, holder)

        spare = max(holders[1:], key=key)
        return [holder for holder in holders if holder != spare]

    # Changes that need a further copy. Each yields a shard with the server that gets it.

    def _lacking(self, changed: Collection[tuple[str, int]]) -> Iterator[Step]:
        for name, uid, index, shard in self._quiet(changed):
            if len(shard["holders"]) < self._wanted:
                free = self._free(uid, index, shard["holders"])
                if free:
                    hosts = _hosts(self._servers, shard["holders"])
                    server = _further(uid, free, hosts, self._loads)
                    self._loads.replace(uid, index, shard["holders"], [*shard["holders"], server])
                    yield Step(name, index, shard["holders"], server)

    def _together(self, changed: Collection[tuple[str, int]]) -> Iterator[Step]:
        """Shards with two holders on one host, though another host could have one."""
        there = min(self._wanted, len(_hosts(self._servers, self._servers)))
        for name, uid, index, shard in self._quiet(changed):
            hosts = _hosts(self._servers, shard["holders"])
            if len(hosts) < there:
                free = self._free(uid, index, shard["holders"])
                free = {s: info for s, info in free.items() if info["host"] not in hosts}
                if free:
                    server = _further(uid, free, hosts, self._loads)
                    holders = [*shard["holders"], server]
                    later = self._without_one(uid, holders)
                    self._loads.replace(uid, index, shard["holders"], later)
                    yield Step(name, index, shard["holders"], server)

    def _uneven_primaries(self, changed: Collection[tuple[str, int]]) -> Iterator[Step]:
        for name, uid, index, shard in self._quiet(changed):
            # If the idlest server is no better, no other one is.
            idlest = self._loads.idlest(self._servers, uid)
            if not self._loads.is_better(uid, index, shard["holders"][0], idlest):
                continue
            free = self._free(uid, index, shard["holders"])
            if free:
                least = min(free, key=lambda server: self._loads.primary(uid, server))
                if self._loads.is_better(uid, index, shard["holders"][0], least):
                    later = [least, *shard["holders"][1:]]
                    self._loads.replace(uid, index, shard["holders"], later)
                    yield Step(name, index, shard["holders"], least)

    def _uneven_copies(self, changed: Collection[tuple[str, int]]) -> Iterator[Step]:
        for name, uid, index, shard in self._quiet(changed):
            for holder in shard["holders"][1:]:
                emptiest = self._loads.emptiest(self._servers, uid)
                if not self._loads.is_better_held(uid, holder, emptiest):
                    continue
                server = self._in_place_of(uid, index, shard["holders"], holder)
                if server is not None:
                    later = [server if h == holder else h for h in shard["holders"]]
                    self._loads.replace(uid, index, shard["holders"], later)
                    yield Step(name, index, shard["holders"], server)
                    break

    def _in_place_of(self, uid: str, index: int, holders: list[str], holder: str) -> str | None:
        """A server that should have the copy of a backup in its place."""
        rest = [other for other in holders if other != holder]
        hosts = _hosts(self._servers, rest)
        apart = len(_hosts(self._servers, holders)) > len(hosts)
        free = [
            server
            for server, info in self._free(uid, index, holders).items()
            if not (apart and info["host"] in hosts)
            and self._loads.is_better_held(uid, holder, server)
        ]
        return min(free, key=lambda server: self._loads.held(uid, server), default=None)

    def _free(self, uid: str, index: int, holders: Collection[str]) -> dict[str, Json]:
        """The servers that could get a copy."""
        return {
            server: info
            for server, info in self._servers.items()
            if server not in holders and not self._refused(uid, index, server)
        }
