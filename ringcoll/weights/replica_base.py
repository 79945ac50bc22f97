"""What leaders, followers and candidates share of a replica. See replica.py."""

from __future__ import annotations

from typing import Any

from ringcoll.weights.catalog import Catalog, Json

BEAT_S = 0.5
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
        self.role = OUTSIDER if not member else LEADER if leader == me else FOLLOWER
        self.out: list[tuple[str, Json]] = []
        self.events: list[tuple[Any, ...]] = []
        self.ended: dict[str, float] = {}  # -> when that was learnt
        self.silent: dict[str, float] = {}  # -> since when
        self.heard: dict[str, float] = dict.fromkeys(catalog.members, now)
        self._contact = contact  # a moment at which the leader had all members
        self._answered = now  # when the leader was heard last
        self._resumed = now  # when this process went on after a pause
        self._ticked = now
        self._beaten = now

    @property
    def leads(self) -> bool:
        """Whether this holder is the leader."""
        return self.role == LEADER

    def current(self) -> list[str]:
        """The members of the newest configuration."""
        return self.configurations[-1][1]

    def hears_leader(self, now: float) -> bool:
        """Whether there is a leader and it has answered lately."""
        raise NotImplementedError

    def _follow(self, now: float, leader: str | None) -> None:
        raise NotImplementedError

    def _lead(self, now: float, newest: Json) -> None:
        raise NotImplementedError

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
        self.catalog = Catalog.from_snapshot(state["catalog"])
        self.configurations = [(i, list(members)) for i, members in state["configurations"]]
        self.epoch, self.index = state["epoch"], state["index"]
        self.committed = min(self.committed, self.index)
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
