"""The leader's part in tables: makes, finds and drops them, and decides who serves which shard.
Pure: time and ids are passed in, messages go to ``out``.

All that counts is in the catalog. The rest is known to this leader alone: requests that wait, and
clients that asked for a table, which are told when its shards change. Clients ask the next leader
again.

A shard gets a further holder in two steps. It is named as *filling*; its primary sends it a copy,
and says "filled". Then it becomes a backup, and a later step may make it the primary or give up a
copy. A server that cannot get a copy, or that the primary cannot reach, is reported as "apart".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ringcoll.errors import Error, Gone, InvalidArgument, Mismatch
from ringcoll.log import log
from ringcoll.weights import saved_tables, table_placement
from ringcoll.weights.catalog_tables import Json, View, is_lost, new_record
from ringcoll.weights.replica import Replica
from ringcoll.weights.table_placement import Loads, Planner, Step

_PLAN_S = 0.2  # between two looks at what to change
_MOST_FILLING = 4  # at a time: copies must not fill the links for long
_REFUSED_S = 5.0  # a server that could not get a copy of a shard is not asked for so long
_WEIGH_S = 10.0  # between two looks at how much shards are used
_LEAST_USES = 1000  # in that time; below, no shard counts as busy
_MOST_WEIGHT = 64
_TOGETHER_S = 5.0  # a leader that stays for so long after others have ended still wants the tables

Ask = tuple[str, int]  # who asked, and the id of the request


class TableLeading:
    """Made with each directory. ``answers`` has what is to be answered: (client, request, body or
    error)."""

    def __init__(self, replica: Replica, out: list[tuple[str, Json]], now: float) -> None:
        self._replica = replica
        self._out = out
        self.answers: list[tuple[str, int, Json | Error]] = []
        self._making: dict[str, list[tuple[Ask, Json]]] = {}  # name -> requests that wait
        self._dropping: dict[str, list[Ask]] = {}  # uid -> requests that wait
        self._askers: dict[str, set[str]] = {}  # uid -> clients
        self._seen = self._view  # what clients were told
        self._apart: dict[tuple[str, int, str], float] = {}  # until when
        self._uses: dict[tuple[str, int], int] = {}  # since the last look
        self._weights: dict[tuple[str, int], int] = {}
        self._losses: list[tuple[float, str, list[int]]] = []  # when, tables, and shards; not told
        self._next_plan = now
        self._next_look = now + _WEIGH_S
        self._settled: tuple[Any, ...] = ()  # the state in which there was nothing to change

    @property
    def _view(self) -> View:
        """The tables that clients may be shown."""
        return self._replica.tables(self._replica.visible())

    # Requests. None: the answer comes later.

    def table(self, now: float, client: str, message: Json) -> Json | None:
        """Makes or finds a table: "name", and to make it "spec", "uid", "workers", and "shards" or
        null. "rows" is how many rows a dense table has, else null. "slots" is how many arrays of
        state the rule keeps."""
        if not self._replica.settled():
            return {"wait": True}
        name = message["name"]
        record = self._view.get(name)
        if record is None and message["spec"] is None:
            raise unknown_table(name, self._view)
        if record is not None:
            return self._show(client, record, message)
        if not table_placement.servers_of(self._replica.catalog.members):
            raise InvalidArgument(
                f"table {name!r}: no holder serves tables: open a store with serve=True"
            )
        self._saved(message)  # refuses
        first = name not in self._making
        self._making.setdefault(name, []).append(((client, message["r"]), message))
        if first:
            self._propose_table(now, message)
        return None

    def tables(self) -> Json:
        """Lists the names."""
        return {"tables": sorted(self._view)} if self._replica.settled() else {"wait": True}

    def drop_table(self, now: float, client: str, message: Json) -> Json | None:
        """Drops a table: "name", and "uid" if it was found before. Dropping again does nothing."""
        if not self._replica.settled():
            return {"wait": True}
        record = self._view.get(message["name"])
        if record is None:
            if message.get("uid") is None:
                raise unknown_table(message["name"], self._view)
            return {}
        if message.get("uid") not in (None, record["uid"]):
            return {}
        uid = record["uid"]
        first = uid not in self._dropping
        self._dropping.setdefault(uid, []).append((client, message["r"]))
        if first:
            operation = {"op": "drop_table", "name": message["name"], "uid": uid}
            self._replica.propose(now, operation)
        return None

    def close(self) -> list[Ask]:
        """This holder does not lead any more. Returns the requests that wait."""
        asks = [ask for waiting in self._making.values() for ask, _ in waiting]
        return asks + [ask for waiting in self._dropping.values() for ask in waiting]

    def clients(self) -> set[str]:
        """Those that have asked for a table."""
        return {client for clients in self._askers.values() for client in clients}

    # Messages of servers.

    def filled(self, now: float, message: Json) -> None:
        """A primary has filled a holder: "uid", "shard", "epoch", "holder"."""
        found = self._find(message)
        if found is not None and found[1]["filling"] == message["holder"]:
            name, shard = found
            holders = [*shard["holders"], shard["filling"]]
            self._propose_step(now, Step(name, message["shard"], holders, None))

    def apart(self, now: float, message: Json) -> None:
        """A holder cannot get a copy, or its primary cannot reach it: "uid", "shard", "epoch",
        "holder"."""
        found, holder = self._find(message), message["holder"]
        if found is None:
            return
        name, shard = found
        self._apart[message["uid"], message["shard"], holder] = now + _REFUSED_S
        filling = None if holder == shard["filling"] else shard["filling"]
        rest = [other for other in shard["holders"] if other != holder]
        if rest:
            self._propose_step(now, Step(name, message["shard"], rest, filling))

    def used(self, message: Json) -> None:
        """A server tells how often its shards were used: "uses" is uid -> {shard: times}."""
        for uid, uses in message["uses"].items():
            for index, times in uses.items():
                key = (uid, int(index))
                self._uses[key] = self._uses.get(key, 0) + int(times)

    def _find(self, message: Json) -> tuple[str, Json] | None:
        """The table and shard that a message names, unless its epoch is not that of the message."""
        for name, record in self._replica.catalog.tables.records.items():
            if record["uid"] == message["uid"]:
                shard = record["shards"][message["shard"]]
                return (name, shard) if shard["epoch"] == message["epoch"] else None
        return None

    # Events.

    def committed(self, now: float) -> None:
        """The log has been committed further."""
        view = self._view
        if view is not self._seen:
            before, self._seen = self._seen, view
            self._tell(now, before, view)
        self._answer_made(now, view)
        for uid in [uid for uid in self._dropping if not _has(view, uid)]:
            for client, request in self._dropping.pop(uid):
                self.answers.append((client, request, {}))

    def lost(self, client: str) -> None:
        """A client's process has ended."""
        for clients in self._askers.values():
            clients.discard(client)

    def tick(self, now: float) -> None:
        """Time has passed. To be called while all that was proposed is committed."""
        if now >= self._next_look:
            self._next_look = now + _WEIGH_S
            self._weights, self._uses = weights_of(self._uses), {}
        self._apart = {key: end for key, end in self._apart.items() if end > now}
        self._answer_made(now, self._view)
        self._warn_of_losses(now)
        if now >= self._next_plan and self._view:
            self._next_plan = now + _PLAN_S
            self._plan(now)

    def _warn_of_losses(self, now: float) -> None:
        """A store that ends as a whole, one process after another, needs no warning."""
        while self._losses and now - self._losses[0][0] >= _TOGETHER_S:
            _, name, lost = self._losses.pop(0)
            log.warning(
                "store: the shards %s of table %r are lost: all their holders have ended; "
                "replicas= makes further copies",
                lost,
                name,
            )

    def _plan(self, now: float) -> None:
        replica, catalog = self._replica, self._replica.catalog
        lost = {*replica.silent, *replica.ended}
        state = (self._view, list(catalog.members), lost, set(self._apart), self._weights)
        if state == self._settled:
            return
        servers = table_placement.servers_of(catalog.members)
        wanted = table_placement.wanted_holders(servers, catalog.replicas)
        planner = Planner(self._view, servers, wanted, self._weigh, self._refuses)
        steps = list(planner.steps(_MOST_FILLING))
        for step in steps:
            self._propose_step(now, step)
        if not steps:
            self._settled = state

    def _weigh(self, uid: str, index: int) -> int:
        return self._weights.get((uid, index), 1)

    def _refuses(self, uid: str, index: int, server: str) -> bool:
        lost = server in self._replica.silent or server in self._replica.ended
        return lost or (uid, index, server) in self._apart

    def _propose_step(self, now: float, step: Step) -> None:
        record = self._replica.catalog.tables.records.get(step.table)
        if record is None:
            return
        operation = {"op": "shard", "table": step.table, "uid": record["uid"], "shard": step.shard}
        operation["epoch"] = record["shards"][step.shard]["epoch"]
        operation |= {"holders": step.holders, "filling": step.filling}
        self._replica.propose(now, operation)

    # New tables.

    def _propose_table(self, now: float, message: Json) -> None:
        catalog, uid = self._replica.catalog, message["uid"]
        servers = table_placement.servers_of(catalog.members)
        living = {s: info for s, info in servers.items() if not self._refuses(uid, 0, s)}
        servers = living or servers
        version, count = self._saved(message)
        count = count or message["shards"]
        count = count or table_placement.shard_count(len(servers), message["rows"])
        wanted = table_placement.wanted_holders(servers, catalog.replicas)
        loads = Loads(catalog.tables.records, self._weigh)
        holders = table_placement.place(uid, count, servers, wanted, loads)
        record = new_record(message["spec"], uid, message["workers"], holders, version)
        self._replica.propose(now, {"op": "table", "name": message["name"], "record": record})

    def _saved(self, message: Json) -> tuple[int | None, int]:
        """The version that a new table begins with, if it was saved, and in how many shards. Raises
        Mismatch if it was saved otherwise than it is described."""
        catalog = self._replica.catalog
        number = catalog.newest_number(self._replica.visible())
        tensors = catalog.versions[number]["tensors"] if number is not None else {}
        count = saved_tables.saved_shards(message["name"], tensors)
        if count == 0:
            return None, 0
        saved_tables.check_fits(message["name"], message["spec"], message["slots"], tensors)
        if message["shards"] not in (None, count):
            raise Mismatch(
                f"table {message['name']!r} was saved in {count} shards, and is made with shards="
                f"{message['shards']}: leave shards= away"
            )
        return number, count

    def _answer_made(self, now: float, view: View) -> None:
        for name in list(self._making):
            record = view.get(name)
            if record is not None:
                for (client, request), message in self._making.pop(name):
                    try:
                        body: Json | Error = self._show(client, record, message)
                    except Error as error:
                        body = error
                    self.answers.append((client, request, body))
            elif self._replica.idle() and name not in self._replica.catalog.tables.records:
                self._propose_table(now, self._making[name][0][1])  # its holders have left

    def _show(self, client: str, record: Json, message: Json) -> Json:
        if message["spec"] is not None:
            compare(message["name"], record, message)
        self._askers.setdefault(record["uid"], set()).add(client)
        return {"table": record}

    # What clients are told.

    def _tell(self, now: float, before: View, view: View) -> None:
        for name, record in view.items():
            old = before.get(name)
            if record is not old:
                self._push(name, record)
                if lost := _lost_since(record, old):
                    self._losses.append((now, name, lost))
        for name, record in before.items():
            if not _has(view, record["uid"]):
                self._push(name, {"uid": record["uid"], "dropped": True})
                self._askers.pop(record["uid"], None)

    def _push(self, name: str, record: Json) -> None:
        message = {"push": "table", "name": name, "table": record}
        for client in sorted(self._askers.get(record["uid"], ())):
            self._out.append((client, message))


def compare(name: str, record: Json, message: Json) -> None:
    """Raises Mismatch if a table is described otherwise than it was made."""
    wanted: Json = dict(message["spec"])
    there: Json = dict(record["spec"])
    if message["shards"] is not None:
        wanted["shards"], there["shards"] = message["shards"], len(record["shards"])
    for field in [*there, *(field for field in wanted if field not in there)]:
        if wanted.get(field) != there.get(field):
            raise Mismatch(
                f"table {name!r} was made with {field}={there.get(field)!r}, and is asked for with "
                f"{field}={wanted.get(field)!r}: describe it as it was made, or open it by its "
                "name alone"
            )


def unknown_table(name: str, view: Mapping[str, Json]) -> Gone:
    """The error for a table that there is not."""
    there = ", ".join(sorted(view)) or "none"
    return Gone(f"there is no table {name!r}: make it with shape= or row_shape= (tables: {there})")


def weights_of(uses: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int]:
    """The weights of shards that are used at least twice as much as the mean: powers of two, so
    that small changes do not count."""
    total = sum(uses.values())
    if total < _LEAST_USES:
        return {}
    weights = {}
    for key, times in uses.items():
        multiple = times * len(uses) // total
        if multiple >= 2:
            weights[key] = min(_MOST_WEIGHT, 1 << (multiple.bit_length() - 1))
    return weights


def _has(view: View, uid: str) -> bool:
    return any(record["uid"] == uid for record in view.values())


def _lost_since(record: Json, before: Json | None) -> list[int]:
    """The shards that are lost, and were not before."""
    old = before["shards"] if before is not None and before["uid"] == record["uid"] else None
    return [
        index
        for index, shard in enumerate(record["shards"])
        if is_lost(shard) and (old is None or not is_lost(old[index]))
    ]
