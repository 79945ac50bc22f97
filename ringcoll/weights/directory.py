"""What the leader knows beside the catalog (leases, watchers, stages, tasks), and what it decides
on retention and refill. Pure: time and ids are passed in, messages go to ``out``.

None of this is replicated. When another holder takes over, clients tell it their leases within
``GRACE_S``, subscribe again, and send their commits again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ringcoll.errors import Error, InternalError, InvalidArgument
from ringcoll.weights import queries
from ringcoll.weights.catalog import Json
from ringcoll.weights.commits import Commits
from ringcoll.weights.replica import Replica
from ringcoll.weights.table_leading import TableLeading
from ringcoll.weights.tasks import Tasks

GRACE_S = 2.0  # clients that are lost, or have lost their leader, keep their leases for so long
_PROBE_S = 0.5
_REFILL_S = 0.5  # between two rounds
_REFILL_BYTES = 256 << 20  # of one round: a refill must not fill a link for long
_REFUSED_S = 5.0  # a holder that could not make a copy is not asked for so long


class Directory:
    """The leader's side of a store. A new one is made whenever a holder begins to lead."""

    def __init__(self, replica: Replica, out: list[tuple[str, Json]], now: float) -> None:
        self._replica = replica
        self._out = out
        self._tasks = Tasks(replica, out)
        self._tasks.retirable = self._retirable
        self._commits = Commits(replica, self._tasks)
        self._tables = TableLeading(replica, out, now)
        self._leases: dict[str, dict[str, int]] = {}  # client -> {lease: version}
        self._watchers: set[str] = set()
        self._clients: set[str] = set()  # those that were told the members
        self._members: list[str] = []  # that they were told
        # Leases of clients whose connection broke, until when they have to be renewed. What such a
        # client has released meanwhile was not heard.
        self._doubtful: dict[str, tuple[float, set[str]]] = {}
        self._absent: dict[str, float] = {}  # clients that do not answer -> since when
        self._grace = now + GRACE_S if replica.epoch > 1 else now
        self._refilling = False
        self._refills = 0
        self._refused: dict[str, float] = {}  # holders that could not make a copy -> until when
        self._next_refill = self._next_probe = now
        self._deficit = True  # pieces may lack copies
        self._revision = replica.catalog.revision
        self._now = now

    # Inputs.

    def request(self, now: float, client: str, message: Json) -> None:
        """Answers a client's request, now or later."""
        self._now = now
        self._absent.pop(client, None)
        if client not in self._clients:
            self._clients.add(client)
            self._tell_members([client])
        kind = message["q"]
        handler: Callable[[str, Json], Json | None] | None
        handler = getattr(self, f"_do_{kind}", None)
        try:
            if handler is None:
                raise InvalidArgument(f"the leader does not know the request {kind!r}")
            body = handler(client, message)
        except Error as error:
            self._answer(client, message["r"], error)
        except (KeyError, TypeError, ValueError) as error:
            self._answer(client, message["r"], InternalError(f"malformed {kind!r}: {error!r}"))
        else:
            if body is not None:
                self._answer(client, message["r"], body)
        self._flush()

    def hear(self, now: float, source: str, message: Json) -> None:
        """Takes a holder's message that replicas do not know."""
        self._now = now
        if message["k"] == "join":
            self._join(source, message)
        elif message["k"] == "pulled":
            self._pulled(source, message)
        elif message["k"] == "pins":
            self._answer_pins(source, message["owners"])
        elif message["k"] == "filled":
            self._tables.filled(now, message)
        elif message["k"] == "apart":
            self._tables.apart(now, message)
        elif message["k"] == "used":
            self._tables.used(message)
        self._flush()

    def committed(self, now: float) -> None:
        """The log has been committed further."""
        self._now = now
        if self._members != list(self._replica.catalog.members):
            self._members = list(self._replica.catalog.members)
            self._tell_members(sorted(self._clients))
        if self._revision != self._replica.catalog.revision:
            self._revision = self._replica.catalog.revision
            self._deficit = True
        new = self._commits.committed(now)
        for number in new:
            self._deficit = True
            for client in sorted(self._watchers):
                self._out.append((client, {"push": "version", "n": number}))
        self._tables.committed(now)
        if new and self._replica.idle():  # else the next version retires those before
            self._retire()
        self._flush()

    def lost(self, now: float, peer: str, ended: bool, why: str) -> None:
        """A client or holder does not answer, or its process has ended."""
        self._now = now
        if self._tasks.lost(peer, self._refill_name):
            if self._refilling:
                self._refilled()
            self._commits.pulled(now)
        if ended:
            self._drop(peer, why)
            self._commits.note_ended(peer)
        else:
            self._absent.setdefault(peer, now)
            if peer in self._leases:
                self._doubtful[peer] = (now + GRACE_S, set(self._leases[peer]))
        self._flush()

    def tick(self, now: float) -> None:
        self._now = now
        for client, since in list(self._absent.items()):
            if now - since >= GRACE_S:
                del self._absent[client]
                self._drop(client, f"has not answered for {GRACE_S + 1.5:g} s")
        for client, (end, leases) in list(self._doubtful.items()):
            if now >= end:
                del self._doubtful[client]
                self._end_leases(client, leases)
        self._commits.tick(now)
        self._probe()
        if self._replica.idle():
            self._forget_away()
            self._retire()
            self._refill()
            self._tables.tick(now)
        self._flush()

    def close(self) -> list[tuple[str, int]]:
        """This holder does not lead any more. Returns the requests that wait. Clients with leases
        or tables and watchers are told, since they have to find the new leader."""
        for client in sorted(self._watchers | self._leases.keys() | self._tables.clients()):
            self._out.append((client, {"push": "moved"}))
        return self._commits.close() + self._tables.close()

    # Requests.

    def _do_open(self, client: str, message: Json) -> Json:
        catalog = self._replica.catalog
        return {
            "leader": self._replica.me,
            "members": catalog.members,
            "identity": catalog.identity,
            "newest": catalog.newest_number(self._replica.visible()) or 0,
        }

    def _do_manifest(self, client: str, message: Json) -> Json:
        if not self._replica.settled():
            return {"wait": True}
        body = queries.manifest(self._replica.catalog, self._replica.visible(), message)
        if body is None:
            return {"wait": True}
        if message["lease"] is not None:
            self._leases.setdefault(client, {})[message["lease"]] = body["version"]
        return body | {"leased": True}

    def _do_release(self, client: str, message: Json) -> Json:
        """Ends leases. Says which of them were still held."""
        return {"held": self._end_leases(client, message["leases"])}

    def _do_held(self, client: str, message: Json) -> Json:
        """Says which leases are held."""
        mine = self._leases.get(client, {})
        return {"held": [lease for lease in message["leases"] if lease in mine]}

    def _do_renew(self, client: str, message: Json) -> Json:
        """A client that was out of touch tells its leases. Says which versions are gone."""
        lost = []
        if client in self._doubtful:
            self._doubtful[client][1].difference_update(message["leases"])
        for lease, number in message["leases"].items():
            if number in self._replica.catalog.versions:
                self._leases.setdefault(client, {})[lease] = number
            else:
                lost.append(lease)
        return {"lost": lost}

    def _do_versions(self, client: str, message: Json) -> Json:
        if not self._replica.settled():
            return {"wait": True}
        return queries.versions(self._replica.catalog, self._replica.visible())

    def _do_watch(self, client: str, message: Json) -> Json:
        if not self._replica.settled():
            return {"wait": True}
        if message["on"]:
            self._watchers.add(client)
        else:
            self._watchers.discard(client)
        newest = self._replica.catalog.newest_number(self._replica.visible())
        return {"newest": newest or 0}

    def _do_info(self, client: str, message: Json) -> Json:
        body = queries.holders(self._replica.catalog) | self._replica.leading_info()
        body |= {"leader": self._replica.me, "leases": sum(map(len, self._leases.values()))}
        return body | {"silent": sorted(self._replica.silent)}

    def _do_stage(self, client: str, message: Json) -> None:
        self._commits.stage(self._now, client, message["r"], message)

    def _do_staged(self, client: str, message: Json) -> None:
        self._commits.staged(self._now, client, message["r"], message)

    def _do_abandon(self, client: str, message: Json) -> Json:
        self._commits.abandon(self._now, message)
        return {}

    def _do_table(self, client: str, message: Json) -> Json | None:
        return self._tables.table(self._now, client, message)

    def _do_tables(self, client: str, message: Json) -> Json:
        return self._tables.tables()

    def _do_drop_table(self, client: str, message: Json) -> Json | None:
        return self._tables.drop_table(self._now, client, message)

    # Decisions.

    def _join(self, source: str, message: Json) -> None:
        operation = {"op": "add", "id": source, "info": message["info"]}
        operation |= {"copies": message["copies"], "regions": message["regions"]}
        operation["shards"] = message.get("shards", {})
        self._replica.admit(self._now, operation)

    def _answer_pins(self, source: str, owners: list[str]) -> None:
        """Tells a holder which stages and refills, for which it keeps pieces, are decided."""
        alive = self._commits.spared()
        if self._refilling or not self._replica.idle():
            alive.add(self._refill_name)
        decided = [owner for owner in owners if owner not in alive]
        if decided:
            self._out.append((source, {"k": "decided", "owners": decided}))

    def _pulled(self, source: str, message: Json) -> None:
        owner = self._tasks.pulled(source, message)
        if owner == self._refill_name:
            if message["problem"]:
                self._refused[source] = self._now + _REFUSED_S
            self._refilled()
        elif owner is not None:
            if message["problem"]:
                self._commits.note_problem(self._now, owner)
            self._commits.pulled(self._now)

    def _refill(self) -> None:
        """Has pieces pulled that lack copies, some at a time."""
        if self._refilling or not self._deficit or self._now < self._next_refill:
            return
        catalog, size = self._replica.catalog, 0
        lacking = catalog.lacking()
        self._deficit = bool(lacking)  # a holder that does not answer now may do so later
        if not lacking:
            return
        self._next_refill = self._now + _REFILL_S
        self._tasks.forget(self._refill_name)
        self._refills += 1
        lost = self._replica.silent.keys() | self._replica.ended.keys()
        self._refused = {h: end for h, end in self._refused.items() if end > self._now}
        for pid in lacking:
            piece, copies = catalog.pieces[pid], catalog.copies[pid]
            if copies.keys() <= lost or size >= _REFILL_BYTES:
                continue
            source = (copies, catalog.regions)
            if self._tasks.add(self._refill_name, pid, piece, *source, without=self._refused):
                self._refilling = True
                size += piece[2]
        self._tasks.flush()

    @property
    def _refill_name(self) -> str:
        return f"refill {self._refills}"

    def _refilled(self) -> None:
        if self._tasks.busy(self._refill_name):
            return
        self._refilling = False
        copies: dict[str, dict[str, list[int]]] = {}
        regions: dict[str, dict[str, str]] = {}
        self._tasks.collect(self._refill_name, copies, regions)
        if not copies:
            return  # the next round comes later: holders may have no memory left
        self._next_refill = self._now
        by_holder: dict[str, dict[str, list[int]]] = {}
        for pid, places in copies.items():
            for holder, place in places.items():
                by_holder.setdefault(holder, {})[pid] = place
        operation = {"op": "copies", "copies": by_holder, "regions": regions}
        self._replica.propose(self._now, operation)

    def _end_leases(self, client: str, leases: Iterable[str]) -> list[str]:
        """Ends leases, and returns those that there were."""
        mine = self._leases.get(client, {})
        held = [lease for lease in leases if mine.pop(lease, None) is not None]
        if not mine:
            self._leases.pop(client, None)
        return held

    def _leased(self) -> set[int]:
        return {number for leases in self._leases.values() for number in leases.values()}

    def _retirable(self) -> list[int]:
        """The versions that go. A version that is not committed yet does not take their place."""
        if self._now < self._grace:
            return []
        return self._replica.catalog.retirable(self._leased())

    def _retire(self) -> None:
        numbers = self._retirable()
        if numbers:
            self._replica.propose(self._now, {"op": "retire", "retire": numbers})

    def _forget_away(self) -> None:
        gone = [holder for holder in self._replica.catalog.away if holder in self._replica.ended]
        if gone:
            self._replica.propose(self._now, {"op": "forget", "ids": gone})

    def _drop(self, client: str, why: str) -> None:
        self._leases.pop(client, None)
        self._doubtful.pop(client, None)
        self._clients.discard(client)
        self._watchers.discard(client)
        self._absent.pop(client, None)
        self._tables.lost(client)
        self._commits.lost(client, why)

    def contact(self, writer: str) -> Json | None:
        """Where a rank of a writers' group is, from whom nothing has come yet."""
        return self._commits.contact(writer)

    def _probe(self) -> None:
        """Asks for a sign of life of the ranks for which others wait: they may have ended before
        this holder has heard of them."""
        if self._now >= self._next_probe:
            self._next_probe = self._now + _PROBE_S
            for writer in self._commits.missing():
                self._out.append((writer, {"k": "ping"}))

    # Answers.

    def _tell_members(self, clients: list[str]) -> None:
        members = self._replica.catalog.members
        for client in clients:
            if client != self._replica.me:
                self._out.append((client, {"push": "members", "members": members}))

    def _flush(self) -> None:
        answers = [*self._commits.answers, *self._tables.answers]
        self._commits.answers, self._tables.answers = [], []
        for client, request, body in answers:
            self._answer(client, request, body)

    def _answer(self, client: str, request: int, body: Json | Error) -> None:
        self._out.append((client, reply(request, body)))


def reply(request: int, body: Json | Error) -> Json:
    """The message that answers a request."""
    if isinstance(body, Error):
        return {"a": request, "error": [body.code, str(body), body.rank]}
    return {"a": request} | body


def error_of(answer: Json) -> Error | None:
    """The error in an answer, or None."""
    if "error" not in answer:
        return None
    code, text, rank = answer["error"]
    kind: Any = next((k for k in Error.__subclasses__() if k.code == code), Error)
    return kind(text, rank)  # type: ignore[no-any-return]
