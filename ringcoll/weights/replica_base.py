"""What leaders, followers and candidates share of a replica. See replica.py."""

from __future__ import annotations

from typing import Any

from ringcoll.weights import quorum
from ringcoll.weights.catalog import Catalog, Json
from ringcoll.weights.catalog_tables import View

BEAT_S = 0.5
DEAF_S = 1.2  # without an answer for so long, a member may promise another candidate
PAUSE_S = 1.0  # a process that was not called for so long was stopped itself
HUNG_S = 8.0  # a process whose connection lives, but which does not answer for so long, is silent

LEADER, FOLLOWER, CANDIDATE, OUTSIDER = "leader", "follower", "candidate", "outsider"


class ReplicaBase:
    """The state of a replica, and what its roles need of one another."""

    def __init__(
        self, me: str, catalog: Catalog, leader: str | None, now: float, contact: float
    ) -> None:
        member = me in catalog.members
        self.me = me
        self.catalog = catalog
        self.leader = leader
        self.epoch = self.promised = 1 if member else 0
        self.index = self.committed = 0
        # The last configuration that may be committed, and those proposed since: (index, members).
        self.configurations: list[tuple[int, list[str]]] = [(0, list(catalog.members))]
        # The tables as of the last index that is known to be committed, and those after it.
        self._views: list[tuple[int, View]] = [(0, catalog.tables.view())]
        self.role = OUTSIDER if not member else LEADER if leader == me else FOLLOWER
        self.out: list[tuple[str, Json]] = []
        self.events: list[tuple[Any, ...]] = []
        self.ended: dict[str, float] = {}  # -> when that was learnt
        self.silent: dict[str, float] = {}  # -> since when
        self.heard: dict[str, float] = dict.fromkeys(catalog.members, now)
        self._contact = contact  # a moment at which the leader had all members
        self._answered = now  # when the leader was heard last
        self._serves_until = contact + quorum.SERVE_S
        self._resumed = now  # when this process went on after a pause
        self._ticked = now
        self._beaten = now

    @property
    def leads(self) -> bool:
        """Whether this holder is the leader."""
        return self.role == LEADER

    @property
    def serves_until(self) -> float:
        """Until when this holder may serve tables of which others have copies, if it has done what
        the newest view of tables says: until then, no other holder was told to serve them."""
        return self._serves_until

    def current(self) -> list[str]:
        """The members of the newest configuration."""
        return self.configurations[-1][1]

    def tables(self, index: int) -> View:
        """All tables as of an index of the log that is committed, or later. What it returns is the
        same object as long as nothing has changed."""
        for i, view in reversed(self._views[1:]):
            if i <= index:
                return view
        return self._views[0][1]

    def hears_leader(self, now: float) -> bool:
        """Whether there is a leader and it has answered lately."""
        raise NotImplementedError

    def _follow(self, now: float, leader: str | None) -> None:
        raise NotImplementedError

    def _lead(self, now: float, newest: Json) -> None:
        raise NotImplementedError

    def _note_tables(self) -> None:
        """Keeps a view of the tables, if an update has changed them."""
        self._drop_old_views()
        if self.catalog.tables.records != self._views[-1][1]:
            self._views.append((self.index, self.catalog.tables.view()))

    def _drop_old_views(self) -> None:
        while len(self._views) > 1 and self._views[1][0] <= self.committed:
            del self._views[0]

    def _send_beat(self, now: float, member: str) -> None:
        beat = {"k": "beat", "t": now, "p": self.promised, "e": self.epoch, "i": self.index}
        self.out.append((member, beat))

    def _sets(self) -> list[frozenset[str]]:
        return [frozenset(members) for _, members in self.configurations]

    def _apply(self, operation: Json) -> None:
        lost = self.catalog.apply(operation)
        if lost:
            gone = [holder for key in ("ended", "ids") for holder in operation.get(key, ())]
            self.events.append(("lost", lost, gone))

    def _adopt(self, state: Json) -> None:
        """Takes the catalog of another holder, with its epoch and index."""
        self._drop_old_views()
        del self._views[1:]  # what was not committed counts no more
        self.catalog = Catalog.from_snapshot(state["catalog"])
        self.configurations = [(i, list(members)) for i, members in state["configurations"]]
        self.epoch, self.index = state["epoch"], state["index"]
        self.committed = min(self.committed, self.index)
        self._note_tables()
        self.events.append(("installed",))

    def _state(self) -> Json:
        return {
            "epoch": self.epoch,
            "index": self.index,
            "catalog": self.catalog.snapshot(),
            "configurations": [[i, list(members)] for i, members in self.configurations],
        }

    def _name_leader(self, kind: str, leader: str | None) -> Json:
        info = self.catalog.members.get(leader) if leader else None
        return {"k": kind, "e": self.promised, "leader": leader, "info": info}
