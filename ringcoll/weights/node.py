"""A holder as a pure state machine: its replica of the catalog, the directory while it leads, and
the pieces that it keeps. It has no I/O, no clock and no threads, so tests run many of them in a
simulated network.

Messages to send are in ``out`` as (destination, message). What the process has to do for it is in
``work``: {"do": "pull", ...}, {"do": "free", "pids": [...]}. The owner empties both after each
call.

A piece is kept while the catalog says that this holder has it, or while it is *pinned*: it belongs
to a stage of this process, or to a task of the present leader. All others are freed, once
everything that this holder knows is committed. So nothing that a version needs is freed, and
nothing stays for ever, whoever is lost.
"""

from __future__ import annotations

import logging
from typing import Any

from ringcoll.errors import Error
from ringcoll.weights import queries
from ringcoll.weights.catalog import Catalog, Json
from ringcoll.weights.directory import Directory, reply
from ringcoll.weights.replica import Replica
from ringcoll.weights.replica_base import OUTSIDER

_log = logging.getLogger("ringcoll")

_TASK = "task"
_READ_ONLY = {"manifest", "versions", "info", "open"}


class Node:
    """A holder of a store.

    ``info`` says where others reach it: {"addresses", "host", "leaf"}. For ``now`` and ``contact``
    see :class:`Replica`.
    """

    def __init__(
        self, me: str, info: Json, catalog: Catalog, leader: str, now: float, contact: float
    ) -> None:
        self.me = me
        self.info = info
        self.replica = Replica(me, catalog, leader, now, contact)
        self.out = self.replica.out
        self.work: list[Json] = []
        self.places: dict[str, list[int]] = {}  # piece -> [region, offset]
        self.regions: dict[str, str] = {}  # region -> handle, for those that were told to others
        self._pins: dict[str, tuple[str, str, int]] = {}  # piece -> (kind, owner, epoch)
        self._known: dict[str, Json] = {}  # holders that are in no catalog of ours
        self._lost_names: dict[str, str] = {}
        self.directory: Directory | None = None
        self._asked_to_join = -1e9
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
            self._drop(message["pids"])
        elif message.get("k") == "bye":
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

    def tick(self, now: float, wall_time: float) -> None:
        """Time has passed. To be called several times a second."""
        self.replica.tick(now)
        if self.directory is not None:
            self.directory.tick(now, wall_time)
        self._react(now)

    def address(self, holder: str) -> Json | None:
        """Where a holder can be reached, or None."""
        return self.replica.catalog.members.get(holder) or self._known.get(holder)

    def know(self, holder: str, info: Json) -> None:
        """Learns where a holder can be reached."""
        self._known[holder] = info

    # Pieces of this holder.

    def pin(self, owner: str, places: dict[str, list[int]], regions: dict[str, str]) -> None:
        """This process has made pieces for a stage. They are kept until :meth:`unpin`."""
        for pid, place in places.items():
            self.places[pid] = place
            self._pins[pid] = ("own", owner, 0)
        self.regions.update(regions)

    def unpin(self, now: float, owner: str) -> None:
        """The stage has been decided."""
        self._pins = {
            pid: pin for pid, pin in self._pins.items() if not (pin[0] == "own" and pin[1] == owner)
        }
        self._sweep()
        self._react(now)

    def pulled(self, now: float, done: Json) -> None:
        """The work "pull" has ended: "source", "task", "e", "places", "regions", "problem"."""
        for pid, place in done["places"].items():
            self.places[pid] = place
            self._pins[pid] = (_TASK, str(done["task"]), done["e"])
        self.regions.update(done["regions"])
        answer = {"k": "pulled", "task": done["task"], "e": done["e"], "places": done["places"]}
        answer |= {"regions": done["regions"], "problem": done["problem"]}
        self.out.append((done["source"], answer))
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
            if self._pins.get(pid, ("",))[0] != "own":
                self._pins[pid] = (_TASK, str(message["task"]), message["e"])
        wanted = {pid: piece for pid, piece in message["pieces"].items() if pid not in have}
        self.work.append({"do": "pull", "source": source, "have": have} | message)
        self.work[-1]["pieces"] = wanted

    def _drop(self, pids: list[str]) -> None:
        for pid in pids:
            if self._pins.get(pid, ("",))[0] == _TASK:
                del self._pins[pid]
        self._sweep()

    def _unpin_old(self) -> None:
        """Drops the pins of tasks that an earlier leader gave."""
        epoch = self.replica.epoch
        old = [pid for pid, pin in self._pins.items() if pin[0] == _TASK and pin[2] < epoch]
        for pid in old:
            del self._pins[pid]

    def _sweep(self) -> None:
        """Frees pieces that nobody needs."""
        replica = self.replica
        if replica.role == OUTSIDER or replica.committed < replica.index:
            return
        copies, nothing = replica.catalog.copies, dict[str, Any]()
        free = []
        for pid in self.places:
            if self.me in copies.get(pid, nothing):
                if self._pins.get(pid, ("",))[0] == _TASK:
                    del self._pins[pid]
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
        elif message["q"] in _READ_ONLY and not self.replica.hears_leader(now):
            self.out.append((client, self._answer_alone(message)))
        else:
            self.out.append((client, {"a": message["r"]} | self._moved(now)))

    def _moved(self, now: float) -> Json:
        leader = self.replica.leader if self.replica.hears_leader(now) else None
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
                body = queries.versions(catalog, visible)
            elif message["q"] == "open":
                newest = catalog.newest_number(visible) or 0
                body = {"leader": None, "members": catalog.members, "newest": newest}
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
        self._sweep()

    def _after_lead(self, now: float) -> None:
        _log.info("store: holder %s leads now, epoch %d", self.me, self.replica.epoch)
        self.directory = Directory(self.replica, self.out, now)
        self._unpin_old()

    def _after_follow(self, now: float, led: bool) -> None:
        directory, self.directory = self.directory, None
        if directory is not None:
            for client, request in directory.close():
                self.out.append((client, {"a": request} | self._moved(now)))
        self._unpin_old()

    def _after_installed(self, now: float) -> None:
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
        pieces = {pid: at for pid, at in self.places.items() if self._pins.get(pid, "x")[0] != "own"}
        used = {str(place[0]) for place in pieces.values()}
        join: Json = {"k": "join", "info": self.info, "copies": pieces}
        join["regions"] = {name: handle for name, handle in self.regions.items() if name in used}
        self.out.append((leader, join))

    def _after_lost(self, now: float, numbers: list[int]) -> None:
        if self.directory is not None:
            _log.warning(
                "store: the versions %s are lost: all holders of some piece have ended", numbers
            )

    def note_change(self) -> None:
        """Members may have come or gone: the leader looks for pieces that lack copies."""
        if self.directory is not None:
            self.directory.changed()
