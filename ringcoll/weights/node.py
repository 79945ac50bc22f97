"""A holder as a pure state machine: its replica of the catalog, the directory while it leads, and
the pieces that it keeps. It has no I/O, no clock and no threads, so tests run many of them in a
simulated network.

Messages to send are in ``out`` as (destination, message). What the process has to do for it is in
``work``: {"do": "pull", ...}, {"do": "free", "pids": [...]}, {"do": "tables"}. The owner empties
both after each call.

A piece is kept while the catalog says that this holder has it, or while it is *pinned*: it belongs
to a stage of this process, or to a task of the present leader. All others are freed, once
everything that this holder knows is committed. So nothing that a version needs is freed, and
nothing stays for ever, whoever is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ringcoll.errors import Error
from ringcoll.log import log
from ringcoll.weights import queries
from ringcoll.weights.catalog import Catalog, Json
from ringcoll.weights.catalog_tables import View
from ringcoll.weights.directory import Directory, reply
from ringcoll.weights.replica import Replica
from ringcoll.weights.replica_base import OUTSIDER

_OWN = "own "  # begins the owners of pins that this process has set itself
_PINS_S = 2.0
_ALONE_S = 0.4
_TOGETHER_S = 5.0  # a holder that stays for so long after others have left still wants the versions
_READ_ONLY = {"manifest", "versions", "info", "open"}


class Node:
    """A holder of a store.

    ``info`` says where others reach it: {"addresses", "host", "leaf"}. For ``now`` and ``contact``
    see :class:`Replica`.
    """

    def __init__(
        self, me: str, info: Json, catalog: Catalog, leader: str | None, now: float, contact: float
    ) -> None:
        self.me = me
        self.info = info
        self.replica = Replica(me, catalog, leader, now, contact)
        self.out = self.replica.out
        self.work: list[Json] = []
        self.places: dict[str, list[int]] = {}  # piece -> [region, offset]
        self.regions: dict[str, str] = {}  # region -> handle, for those that were told to others
        self.shards: dict[str, dict[str, int]] = {}  # of tables: uid -> {shard: epoch}, served here
        # What was acted on: the view of tables, members, and those away.
        self._tables: tuple[View, list[list[str]]] = ({}, [])
        self._pins: dict[str, dict[str, int]] = {}  # piece -> {owner: epoch}
        self._known: dict[str, Json] = {}  # holders that are in no catalog of ours
        self.directory: Directory | None = None
        self._left: set[str] = set()  # holders that have said goodbye
        self._losses: list[tuple[float, list[int]]] = []  # versions that went with them, and when
        self._asked_to_join = self._asked_about_pins = -1e9
        if self.replica.leads:
            self.directory = Directory(self.replica, self.out, now)

    # Inputs.

    def receive(self, now: float, source: str, message: Json) -> None:
        """Takes a message of another holder or of a client."""
        if "q" in message:
            self._request(now, source, message)
        elif message.get("k") == "pull":
            self._pull(source, message)
        elif message.get("k") == "drop":
            self._unpin(lambda owner, epoch: owner == message["owner"], message["pids"])
        elif message.get("k") == "decided":
            self._unpin(lambda owner, epoch: owner in message["owners"])
        elif message.get("k") == "bye":
            self._left.add(source)
            self.replica.hear_goodbye(now, source, message)
            self.down(now, source, True, "has closed its store")
        elif not self.replica.receive(now, source, message) and self.directory is not None:
            self.directory.hear(now, source, message)
        self._react(now)

    def up(self, now: float, peer: str) -> None:
        """A connection with a holder or client is there."""
        self.replica.up(now, peer)
        self._react(now)

    def down(self, now: float, peer: str, ended: bool, why: str = "") -> None:
        """The peer's process has ended, or it is silent."""
        why = why or ("has ended" if ended else "does not answer")
        self.replica.down(now, peer, ended)
        if self.directory is not None:
            self.directory.lost(now, peer, ended, why)
        self._react(now)

    def tick(self, now: float) -> None:
        """Time has passed. To be called several times a second."""
        self.replica.tick(now)
        if self.directory is not None:
            self.directory.tick(now)
        self._ask_about_pins(now)
        self._know_members()
        self._tell_losses(now)
        self._react(now)

    def goodbye(self) -> Json:
        """The last message of this holder to others, when it leaves."""
        return {"k": "bye"} | self.replica.farewell()

    def address(self, holder: str) -> Json | None:
        """Where a holder can be reached, or None."""
        catalog = self.replica.catalog
        away = catalog.away.get(holder, {}).get("info")
        found = catalog.members.get(holder) or self._known.get(holder) or away
        if found is None and self.directory is not None:
            found = self.directory.contact(holder)
        return found

    def know(self, holder: str, info: Json) -> None:
        """Learns where a holder can be reached."""
        self._known[holder] = info

    def _know_members(self) -> None:
        """Remembers where holders are as long as it may matter."""
        relevant = self.replica.relevant()
        self._known = {h: info for h, info in self._known.items() if h in relevant}
        self._known |= self.replica.catalog.members
        self._left &= relevant

    # Pieces of this holder.

    def pin(self, owner: str, places: dict[str, list[int]], regions: dict[str, str]) -> None:
        """This process has made pieces for a stage. They are kept until :meth:`unpin`."""
        for pid, place in places.items():
            self.places[pid] = place
            self._pins.setdefault(pid, {})[_OWN + owner] = 0
        self.regions.update(regions)

    def unpin(self, now: float, owner: str) -> None:
        """The stage has been decided."""
        self._unpin(lambda pin, epoch: pin == _OWN + owner)
        self._react(now)

    def pulled(self, now: float, done: Json) -> None:
        """The work "pull" has ended: "source", "task", "owner", "e", "places", "regions",
        "problem"."""
        for pid, place in done["places"].items():
            self.places[pid] = place
            self._pins.setdefault(pid, {})[done["owner"]] = done["e"]
        self.regions.update(done["regions"])
        answer = {key: done[key] for key in ("task", "owner", "e", "places", "regions", "problem")}
        self.out.append((done["source"], {"k": "pulled"} | answer))
        self._unpin_old()
        self._react(now)

    def has(self, pid: str) -> list[int] | None:
        """Where this holder has a piece, or None."""
        return self.places.get(pid)

    def _pull(self, source: str, message: Json) -> None:
        if message["e"] < self.replica.promised:
            return
        have = {pid: self.places[pid] for pid in message["pieces"] if pid in self.places}
        for pid in have:
            self._pins.setdefault(pid, {})[message["owner"]] = message["e"]
        wanted = {pid: piece for pid, piece in message["pieces"].items() if pid not in have}
        self.work.append(message | {"do": "pull", "source": source, "have": have, "pieces": wanted})

    def _unpin(self, chosen: Callable[[str, int], bool], pids: Iterable[str] | None = None) -> None:
        """Drops pins that are ``chosen`` by owner and epoch, and then what nobody needs."""
        for pid in list(self._pins) if pids is None else pids:
            pins = self._pins.get(pid, {})
            for owner in [owner for owner, epoch in pins.items() if chosen(owner, epoch)]:
                del pins[owner]
            if not pins:
                self._pins.pop(pid, None)
        self._sweep()

    def _ask_about_pins(self, now: float) -> None:
        """Asks the leader which owners of pins have been decided, as its message may be lost."""
        owners = {o for pins in self._pins.values() for o in pins if not o.startswith(_OWN)}
        if owners and now - self._asked_about_pins >= _PINS_S and self.replica.leader:
            self._asked_about_pins = now
            self.out.append((self.replica.leader, {"k": "pins", "owners": sorted(owners)}))

    def _unpin_old(self) -> None:
        """Drops the pins of tasks that an earlier leader gave."""
        current = self.replica.epoch
        self._unpin(lambda owner, epoch: not owner.startswith(_OWN) and epoch < current)

    def _sweep(self) -> None:
        """Frees pieces that nobody needs."""
        replica = self.replica
        if replica.role == OUTSIDER or replica.committed < replica.index:
            return
        copies, nothing = replica.catalog.copies, dict[str, Any]()
        free = []
        for pid in self.places:
            if self.me in copies.get(pid, nothing):
                pins = self._pins.get(pid, nothing)
                for owner in [owner for owner in pins if not owner.startswith(_OWN)]:
                    del pins[owner]
                if not pins:
                    self._pins.pop(pid, None)
            elif pid not in self._pins:
                free.append(pid)
        for pid in free:
            del self.places[pid]
        if free:
            self.work.append({"do": "free", "pids": free})

    # Requests.

    def _request(self, now: float, client: str, message: Json) -> None:
        if self.directory is not None:
            self.directory.request(now, client, message)
        elif message["q"] in _READ_ONLY and self._answers_readers(now, message):
            self.out.append((client, self._answer_alone(message)))
        else:
            self.out.append((client, {"a": message["r"]} | self._moved(now)))

    def _answers_readers(self, now: float, message: Json) -> bool:
        """Whether this holder answers a reader, though it does not lead. There has been no leader
        for so long that readers should not wait for one: a take-over is faster, and the next leader
        knows the last commit for certain. Or the reader is cut off from the leader."""
        if self.replica.role == OUTSIDER:
            return False
        unheard = message.get("unheard")
        is_cut_off = unheard is not None and unheard == self.replica.leader
        return is_cut_off or self.replica.leaderless(now) >= _ALONE_S

    def _moved(self, now: float) -> Json:
        known = self.replica.hears_leader(now) or self.replica.role == OUTSIDER
        leader = self.replica.leader if known else None
        info = self.address(leader) if leader else None
        return {"moved": leader if info else None, "info": info}

    def _answer_alone(self, message: Json) -> Json:
        """Answers a reader without a leader: from what was committed, and without a lease."""
        catalog, visible = self.replica.catalog, self.replica.committed
        try:
            if message["q"] == "manifest":
                body = queries.manifest(catalog, visible, message) or {"wait": True}
                body |= {"leased": False}
            elif message["q"] == "versions":
                body = queries.versions(catalog, visible) | {"leader": None}
            elif message["q"] == "open":
                newest = catalog.newest_number(visible) or 0
                body = {"leader": None, "members": catalog.members, "newest": newest}
                body["identity"] = catalog.identity
            else:
                body = queries.holders(catalog) | self.replica.leading_info() | {"leader": None}
        except Error as error:
            return reply(message["r"], error)
        return reply(message["r"], body)

    # Reactions to what the replica has done.

    def _react(self, now: float) -> None:
        events = self.replica.events
        while events:
            event = events.pop(0)
            getattr(self, "_after_" + event[0])(now, *event[1:])

    def _after_commit(self, now: float) -> None:
        if self.directory is not None:
            self.directory.committed(now)
        self._follow_tables()
        self._sweep()

    def _after_lead(self, now: float) -> None:
        log.debug("store: holder %s leads now, epoch %d", self.me, self.replica.epoch)
        self.directory = Directory(self.replica, self.out, now)
        self._unpin_old()

    def _after_follow(self, now: float, led: bool) -> None:
        directory, self.directory = self.directory, None
        if directory is not None:
            for client, request in directory.close():
                self.out.append((client, {"a": request} | self._moved(now)))
        self._unpin_old()

    def _follow_tables(self) -> None:
        """Has the process act on tables, or on members that serve them, if these have changed. Only
        what is committed counts."""
        view = self.replica.tables(self.replica.committed)
        holders = [list(self.replica.catalog.members), list(self.replica.catalog.away)]
        seen, before = self._tables
        # A view that equals the one that was acted on may have come after another one, and the
        # server goes on only when it has followed the newest (tables/serving.py).
        if (view or seen) and (view is not seen or holders != before):
            self._tables = (view, holders)
            self.work.append({"do": "tables"})

    def _after_installed(self, now: float) -> None:
        self._follow_tables()
        self._unpin_old()
        self._sweep()

    def _after_known(self, now: float, holder: str, info: Json) -> None:
        self._known[holder] = info

    def _after_removed(self, now: float) -> None:
        """The leader does not count this holder any more, or not yet: it joins with what it has."""
        leader = self.replica.leader
        if leader is None or now - self._asked_to_join < 0.2:
            return
        self._asked_to_join = now
        used = {str(place[0]) for place in self.places.values()}
        join: Json = {"k": "join", "info": self.info, "copies": self.places}
        join["shards"] = self.shards
        join["regions"] = {name: handle for name, handle in self.regions.items() if name in used}
        self.out.append((leader, join))

    def _after_lost(self, now: float, numbers: list[int], holders: list[str]) -> None:
        """The leader warns of versions that are lost. If their holders have left on purpose, it
        waits whether it is to leave as well: a store that ends as a whole needs no warning."""
        if self.directory is None:
            return
        if holders and self._left.issuperset(holders):
            self._losses.append((now, numbers))
        else:
            _warn_of_loss(numbers, "ended")

    def _tell_losses(self, now: float) -> None:
        while self._losses and now - self._losses[0][0] >= _TOGETHER_S:
            _warn_of_loss(self._losses.pop(0)[1], "left")


def _warn_of_loss(numbers: list[int], how: str) -> None:
    log.warning(
        "store: the versions %s are lost: all holders of some piece have %s; replicas= makes "
        "further copies",
        numbers,
        how,
    )
