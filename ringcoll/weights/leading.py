"""The leader's part of a replica: updates, their commit, and the removal of lost members."""

from __future__ import annotations

from typing import Any

from ringcoll.weights import quorum
from ringcoll.weights.catalog import Catalog, Json
from ringcoll.weights.replica_base import DEAF_S, HUNG_S, LEADER, ReplicaBase


class Leading(ReplicaBase):
    """A replica that can lead."""

    def __init__(
        self, me: str, catalog: Catalog, leader: str | None, now: float, contact: float
    ) -> None:
        super().__init__(me, catalog, leader, now, contact)
        self._waiting: list[Json] = []  # operations for the next update
        self._acked: dict[str, int] = {m: 0 for m in catalog.members if m != me}
        self._installed = 0  # the index at which this leader began

    def propose(self, now: float, operation: Json) -> None:
        """Puts an operation into the log. It is applied when the update before it is committed."""
        self._waiting.append(operation)
        self._advance(now)

    def admit(self, now: float, operation: Json) -> None:
        """Adds a member at once, even if the update before it waits: the new member may be what
        that update lacks. One that is a member already is sent the catalog again."""
        if operation["id"] in self.catalog.members:
            self._send_install(operation["id"])
        else:
            self._issue(now, [operation])

    def visible(self) -> int:
        """The index up to which readers may be shown the catalog: what is committed, or what a new
        leader has found and installed at a majority."""
        if self.settled():
            return max(self.committed, self._installed)
        return self.committed

    def settled(self) -> bool:
        """False while a new leader has not yet installed its catalog at enough members. What it
        shows may lack the last commit until then."""
        if not self.leads or self.committed >= self._installed:
            return True
        return quorum.is_majority(self._sets(), self._having(self._installed))

    def idle(self) -> bool:
        """Whether all that was proposed is committed."""
        return self.committed == self.index and not self._waiting

    def has_heard(self, member: str, since: float) -> bool:
        """Whether a member has given a sign of life since a moment."""
        return member == self.me or self.heard.get(member, since) > since

    def blockers(self) -> list[str]:
        """The members for whose acknowledgement the leader waits."""
        having = self._having(self.index)
        return [member for member in self.current() if member not in having]

    # Updates.

    def _advance(self, now: float) -> None:
        if self._waiting and self.committed == self.index:
            operations, self._waiting = self._waiting, []
            self._issue(now, operations)

    def _issue(self, now: float, operations: list[Json]) -> None:
        """Sends the next update. Does not wait for the one before."""
        before = set(self.catalog.members)
        self.index += 1
        for operation in operations:
            if operation["op"] == "version":
                operation["record"]["index"] = self.index
            self._apply(operation)
        self._note_members()
        self._note_tables()
        update = {"k": "update", "e": self.epoch, "i": self.index, "c": self.committed}
        update["ops"] = operations
        for member in self.current():
            if member == self.me:
                continue
            if member in before and member in self._acked:
                self.out.append((member, update))
            else:
                self.heard[member] = now
                self._send_install(member)
        self._try_commit(now)

    def _note_members(self) -> None:
        members = list(self.catalog.members)
        if members != self.current():
            self.configurations.append((self.index, members))

    def _on_ack(self, now: float, source: str, message: Json) -> None:
        if self.leads and message["e"] == self.epoch:
            self._acked[source] = max(self._acked.get(source, 0), message["i"])
            self._try_commit(now)

    def _try_commit(self, now: float) -> None:
        having = self._having(self.index)
        if self.committed == self.index or not having.issuperset(self.current()):
            return
        if not quorum.leader_may_go_on(self._sets(), having, set(self.ended), self._stale()):
            return
        self.committed = self.index
        self.configurations = self.configurations[-1:]
        self._send_commit(self.current())
        self.events.append(("commit",))
        self._advance(now)

    def _send_commit(self, members: list[str]) -> None:
        for member in members:
            if member != self.me:
                self.out.append((member, {"k": "commit", "e": self.epoch, "i": self.committed}))

    def _send_install(self, member: str) -> None:
        self._acked.setdefault(member, 0)
        message: Json = {"k": "install", "e": self.epoch, "i": self.index, "c": self.committed}
        self.out.append((member, message | {"state": self._state()}))

    # Members that are lost.

    def _review(self, now: float) -> None:
        """Removes members that are lost, if those that remain may go on."""
        others = [member for member in self.current() if member != self.me]
        ended = [member for member in others if member in self.ended]
        silent = [m for m in others if m not in self.ended and self._is_silent(now, m)]
        if not ended and not silent:
            return
        remain = set(self.current()) - set(ended) - set(silent)
        if not quorum.leader_may_go_on(self._sets(), remain, set(self.ended), self._stale()):
            return
        for member in [*ended, *silent]:
            self._acked.pop(member, None)
        self._issue(now, [{"op": "remove", "ended": ended, "silent": silent}])

    def _is_silent(self, now: float, member: str) -> bool:
        """Whether a member has been silent for so long that it may be removed."""
        unheard = now - max(self.heard.get(member, now), self._resumed)
        return unheard >= (quorum.REMOVAL_S if member in self.silent else HUNG_S)

    def _on_beat(self, now: float, source: str, message: Json) -> None:
        if not self.leads:
            self.out.append((source, self._name_leader("hint", self.leader)))
        elif message["p"] > self.epoch:
            self._step_down(now, message["p"])
        elif source not in self.current():
            self._send_removed(source)
        else:
            if (message["e"], message["i"]) != (self.epoch, self.index):
                self._send_install(source)
            pulse = {"k": "pulse", "e": self.epoch, "c": self.committed, "t": message["t"]}
            pulse |= {"age": self._age(now), "sure": self._is_sure(now)}
            self.out.append((source, pulse))

    def _send_removed(self, holder: str) -> None:
        message: Json = {"k": "removed", "e": self.epoch, "i": self.index}
        self.out.append((holder, message | {"info": self.catalog.members[self.me]}))

    def _age(self, now: float) -> float:
        """How long ago the leader has heard the member that it has heard least."""
        return max(
            (now - self.heard.get(m, 0.0) for m in self.current() if m != self.me), default=0
        )

    def _is_sure(self, now: float) -> bool:
        """Whether so many members were heard lately that no rival was elected before that."""
        heard = {m for m in self.current() if now - self.heard.get(m, -1e9) < DEAF_S}
        living = heard | {self.me}
        return quorum.leader_may_go_on(self._sets(), living, set(self.ended), self._stale())

    def _on_stale(self, now: float, source: str, message: Json) -> None:
        if self.leads and message["e"] > self.epoch:
            self._step_down(now, message["e"])

    def _step_down(self, now: float, epoch: int) -> None:
        self.promised = max(self.promised, epoch)
        self._follow(now, None)

    def _lead(self, now: float, newest: Json) -> None:
        """Begins to lead, with the newest catalog of all that have promised."""
        if "state" in newest:
            self._adopt(newest["state"])
        self.role, self.leader = LEADER, self.me
        self.epoch = self.promised
        self.index += 1  # so that what is installed has an index that can be acknowledged
        self._installed = self.index
        self._acked, self._waiting = {}, []
        self.heard = dict.fromkeys(self.current(), now)
        self.events.append(("lead",))
        for member in self.current():
            if member != self.me and member not in self.ended:
                self._send_install(member)
        self._review(now)
        self._try_commit(now)

    def _having(self, index: int) -> set[str]:
        return {self.me} | {member for member, i in self._acked.items() if i >= index}

    def _stale(self) -> set[str]:
        """The members that have ended, and that may have had another leader before."""
        limit = quorum.FRESH_S
        return {m for m, at in self.ended.items() if at >= self.heard.get(m, -1e9) + limit}

    def _forget_leading(self) -> None:
        self._waiting, self._acked = [], {}

    def leading_info(self) -> dict[str, Any]:
        """What a person wants to know of the log."""
        return {"epoch": self.epoch, "index": self.index, "committed": self.committed}
