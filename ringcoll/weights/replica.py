"""How all holders keep the same catalog: a log of updates with (epoch, index), and take-over.

A pure state machine: time and ids are passed in, messages go to ``out``, and ``events`` tells the
owner what has changed. It has no I/O and no threads.

*Normal work.* The leader applies operations to its catalog and sends them to every member as the
next update. An update is committed when every member of the newest configuration has acknowledged
it, and :func:`quorum.leader_may_go_on` holds for all configurations that may still count. So each
member has all that is committed, and any survivor can take over.

*Lost members.* The leader removes members that have ended at once, and silent ones after
``REMOVAL_S``, if those that remain suffice. Otherwise updates wait. A member that was removed by
mistake is told so when it sends its next beat, and joins again.

*Take-over.* A member without a leader asks all others whether they would promise a higher epoch,
and if enough would, asks them to do so. A member promises an epoch once, and then refuses updates
of lower ones. It does not promise while it hears its own leader. With enough promises
(:func:`quorum.candidate_may_lead`) the candidate takes the newest catalog among those of all that
promised, and installs it everywhere. Whole catalogs are sent then: they are small.

*Contact.* Members send beats, and the leader answers with the beat's time and with the age of its
contact with the member that it has heard least. Time minus age is a moment at which the leader had
all members: no rival was elected before it. That is the proof that quorum.py asks for. The leader
also says whether it is *sure*: whether it has lately heard so many members that no rival was
elected more than ``DEAF_S`` ago. A rival removes nobody in its first ``REMOVAL_S``. So until
``SERVE_S`` after a beat with a sure answer, no other holder was told to serve what this one serves.
"""

from __future__ import annotations

from ringcoll.weights import quorum
from ringcoll.weights.catalog import Catalog, Json
from ringcoll.weights.leading import Leading
from ringcoll.weights.replica_base import (
    BEAT_S,
    CANDIDATE,
    DEAF_S,
    FOLLOWER,
    HUNG_S,
    OUTSIDER,
    PAUSE_S,
)

CANDIDACY_S = 1.0
RANK_DELAY_S = 0.25  # a more junior member waits longer before it asks for promises


class Replica(Leading):
    """One holder's copy of the catalog, and its part in keeping it.

    The first configuration is the catalog's members, which all begin with the same catalog and
    ``leader`` at epoch 1. A holder that is not among them is an outsider until it has joined.
    ``now`` is the time; ``contact`` is a time before which the leader had not yet begun.

    ``out`` has (destination, message) pairs. ``events`` has ("commit",), ("lead",),
    ("follow", whether it led before), ("installed",), ("removed",), ("known", id, info) and
    ("lost", version numbers, the holders that have ended with them). The owner empties both.
    """

    def __init__(
        self, me: str, catalog: Catalog, leader: str | None, now: float, contact: float
    ) -> None:
        super().__init__(me, catalog, leader, now, contact)
        self._leaderless = now
        self._candidacy = 0.0
        self._retry = 0.0
        self._sounding = False  # it only asks whether others would promise
        self._asked = 0
        self._promises: dict[str, Json] = {}

    # Inputs.

    def receive(self, now: float, source: str, message: Json) -> bool:
        """Takes a message of another holder. Returns False if the message is none of these."""
        handler = getattr(self, "_on_" + str(message.get("k")), None)
        if handler is None:
            return False
        self.silent.pop(source, None)
        self.heard[source] = now
        handler(now, source, message)
        return True

    def up(self, now: float, peer: str) -> None:
        """A connection with the peer is there."""
        self.silent.pop(peer, None)
        if self.leads and peer in self.current():
            self._send_install(peer)
        elif peer == self.leader:
            self._send_beat(now, peer)

    def down(self, now: float, peer: str, ended: bool) -> None:
        """The peer's process has ended, or it is silent. Peers that are no holders do not count."""
        if peer not in self.relevant():
            return
        if ended:
            self.ended.setdefault(peer, now)
            self.silent.pop(peer, None)
        elif peer not in self.ended:
            self.silent.setdefault(peer, now)
        self._proceed(now)

    def farewell(self) -> Json:
        """What a leader says of the log when it leaves: those who have the same can go on at once,
        since it has not removed them."""
        if not self.leads:
            return {}
        return {"e": self.epoch, "i": self.index, "members": self.current()}

    def hear_goodbye(self, now: float, source: str, message: Json) -> None:
        """A holder leaves. It is gone when :meth:`down` says so."""
        if source != self.leader or self.me not in message.get("members", ()):
            return
        if (message["e"], message["i"]) == (self.epoch, self.index):
            self._contact = now

    def tick(self, now: float) -> None:
        """Time has passed. To be called several times a second."""
        if now - self._ticked > PAUSE_S:
            self._resumed = now
        self._ticked = now
        self._forget_peers()
        self._proceed(now)
        if self.leads and self._is_sure(now):
            self._serves_until = now + quorum.SERVE_S
        if now - self._beaten >= BEAT_S:
            self._beaten = now
            self._send_beats(now)

    def hears_leader(self, now: float) -> bool:
        if self.leads:
            return True
        return (
            self.role == FOLLOWER and not self._is_leaderless(now) and now - self._answered < DEAF_S
        )

    def concerned(self) -> set[str]:
        """The living holders that have to know at once if this one leaves: the leader or, of the
        leader, its members."""
        told = self.current() if self.leads else [self.leader] if self.leader else []
        return set(told) - {self.me} - set(self.ended)

    def relevant(self) -> set[str]:
        """The holders with which this one may have to do."""
        known = {member for _, members in self.configurations for member in members}
        return known | set(self.catalog.away) | ({self.leader} if self.leader else set())

    def _forget_peers(self) -> None:
        relevant = self.relevant()
        for table in (self.ended, self.silent, self.heard):
            for peer in [peer for peer in table if peer not in relevant]:
                del table[peer]

    def leaderless(self, now: float) -> float:
        """For how long there has been no leader, in seconds."""
        return 0.0 if self.hears_leader(now) else now - self._leaderless

    def _proceed(self, now: float) -> None:
        if self.leads:
            self._review(now)
            self._try_commit(now)
        elif self.role != CANDIDATE:
            self._consider(now)
        elif now - self._candidacy > CANDIDACY_S:
            self._stand_down(now)
        else:
            self._count_promises(now)

    # Follower.

    def _accepts(self, source: str, epoch: int) -> bool:
        if epoch >= self.promised:
            return True
        self.out.append((source, {"k": "stale", "e": self.promised}))
        return False

    def _on_update(self, now: float, source: str, message: Json) -> None:
        epoch, index = message["e"], message["i"]
        if not self._accepts(source, epoch):
            return
        if epoch != self.epoch or index > self.index + 1:
            self._send_beat(now, source)  # the leader then sends its whole catalog
            return
        self._answered = now
        if index == self.index + 1:
            self.index = index
            for operation in message["ops"]:
                self._apply(operation)
            self._note_members()
            self._note_tables()
        self._learn_commit(message["c"])
        self.out.append((source, {"k": "ack", "e": epoch, "i": self.index}))

    def _on_install(self, now: float, source: str, message: Json) -> None:
        epoch, index = message["e"], message["i"]
        if not self._accepts(source, epoch):
            return
        if epoch != self.epoch:
            self._contact = -1e9
        if (epoch, index) > (self.epoch, self.index):
            self._adopt(message["state"])
        self.promised = epoch
        if self.me in self.catalog.members and (self.role != FOLLOWER or self.leader != source):
            self._follow(now, source)
        self._answered = now
        self._learn_commit(message["c"])
        self.out.append((source, {"k": "ack", "e": epoch, "i": self.index}))
        if self._contact < now - BEAT_S:
            self._send_beat(now, source)

    def _on_commit(self, now: float, source: str, message: Json) -> None:
        if message["e"] == self.epoch and source == self.leader:
            self._answered = now
            self._learn_commit(message["i"])

    def _on_pulse(self, now: float, source: str, message: Json) -> None:
        if message["e"] == self.epoch == self.promised and source == self.leader:
            self._answered = now
            self._contact = max(self._contact, message["t"] - message["age"])
            self._learn_commit(message["c"])
            if message["sure"] and self.committed >= message["c"]:
                self._serves_until = max(self._serves_until, message["t"] + quorum.SERVE_S)

    def _learn_commit(self, index: int) -> None:
        if self.committed >= min(index, self.index):
            return
        self.committed = min(index, self.index)
        while len(self.configurations) > 1 and self.configurations[1][0] <= self.committed:
            del self.configurations[0]
        self.events.append(("commit",))

    def _on_removed(self, now: float, source: str, message: Json) -> None:
        if self.leads:
            if message["e"] > self.epoch:
                self._step_down(now, message["e"])
        elif message["e"] >= self.promised and not self._is_old(message):
            self.events.append(("known", source, message["info"]))
            self.role, self.leader = OUTSIDER, source
            self._answered = now
            self.events.append(("removed",))

    def _is_old(self, message: Json) -> bool:
        """Whether a message that this holder was removed is older than what it knows."""
        return (message["e"], message["i"]) < (self.epoch, self.index)

    def _on_hint(self, now: float, source: str, message: Json) -> None:
        """A holder that was asked for the leader names it. That one is asked next."""
        if self.leads and message["e"] > self.epoch:
            self._step_down(now, message["e"])
        known = message["leader"]
        if known in (None, self.me) or self.hears_leader(now):
            return
        if message["info"]:
            self.events.append(("known", known, message["info"]))
        self._send_beat(now, known)

    def _send_beats(self, now: float) -> None:
        if self.leads:
            # Connections with holders that are lost are tried again: they may be back, or have
            # ended meanwhile. Holders that were removed may have another leader.
            away = self.catalog.away.keys() - set(self.ended)
            for member in sorted(away):
                self._send_removed(member)
            lost = set(self.silent) - away
            if not self.idle():
                lost |= {member for _, members in self.configurations for member in members}
            for member in sorted(lost - {self.me} - set(self.ended)):
                self._send_beat(now, member)
        elif self.hears_leader(now) and self.leader is not None:
            self._send_beat(now, self.leader)
        else:
            known = {*self.current(), *([self.leader] if self.leader else [])}
            for member in sorted(known - {self.me} - set(self.ended)):
                self._send_beat(now, member)

    # Take-over.

    def _is_leaderless(self, now: float) -> bool:
        if self.leader is None or self.leader in self.ended or self.leader in self.silent:
            return True
        return now - max(self._answered, self._resumed) > HUNG_S

    def _consider(self, now: float) -> None:
        """Begins a candidacy if there is no leader and no more senior member does."""
        if self.role != FOLLOWER:
            return
        if not self._is_leaderless(now):
            self._leaderless = now
            return
        lost = {self.leader} | set(self.ended) | set(self.silent)
        rivals = [member for member in self.current() if member not in lost]
        if self.me not in rivals or now < self._retry:
            return
        if now - self._leaderless >= RANK_DELAY_S * rivals.index(self.me):
            self.role, self._candidacy = CANDIDATE, now
            self._ask(now, sounding=True)

    def _ask(self, now: float, sounding: bool) -> None:
        self._sounding = sounding
        self._asked = self.promised + 1
        if not sounding:
            self.promised = self._asked
        own = {"epoch": self.epoch, "index": self.index}
        self._promises = {self.me: own | {"configurations": self.configurations}}
        ended = [member for member in self.current() if member in self.ended]
        ask = {"k": "prepare", "e": self._asked, "ended": ended, "sounding": sounding} | own
        everyone = {member for _, members in self.configurations for member in members}
        for member in sorted(everyone - {self.me} - set(self.ended)):
            self.out.append((member, ask))
        self._count_promises(now)

    def _on_prepare(self, now: float, source: str, message: Json) -> None:
        for member in message["ended"]:
            if member != self.me:
                self.ended.setdefault(member, now)
        if self.leads or self.hears_leader(now):
            self.out.append((source, self._name_leader("no", self.leader)))
            return
        epoch, sounding = message["e"], message["sounding"]
        if epoch <= self.promised:
            self.out.append((source, self._name_leader("no", None)))
            return
        answer = {"k": "promise", "e": epoch, "epoch": self.epoch, "index": self.index}
        answer |= {"configurations": self.configurations, "sounding": sounding}
        if not sounding:
            self.promised = epoch
            if self.role != OUTSIDER:
                self._follow(now, None)
            if (self.epoch, self.index) > (message["epoch"], message["index"]):
                answer["state"] = self._state()
        self.out.append((source, answer))

    def _on_promise(self, now: float, source: str, message: Json) -> None:
        if self.role != CANDIDATE or message["e"] != self._asked:
            return
        if message["sounding"] == self._sounding:
            self._promises[source] = message
            self._count_promises(now)

    def _on_no(self, now: float, source: str, message: Json) -> None:
        if self.role != CANDIDATE:
            return
        if message["leader"] is not None:
            self._stand_down(now)
            self._on_hint(now, source, message)
        elif message["e"] >= self._asked:
            self.promised = max(self.promised, message["e"])
            self._stand_down(now)

    def _count_promises(self, now: float) -> None:
        newest = max(self._promises.values(), key=lambda p: (p["epoch"], p["index"]))
        sets = [frozenset(members) for _, members in newest["configurations"]]
        stale = {m for m, at in self.ended.items() if at >= self._contact + quorum.FRESH_S}
        if self.me not in sets[-1]:
            return
        if not quorum.candidate_may_lead(sets, set(self._promises), set(self.ended), stale):
            return
        if self._sounding:
            self._ask(now, sounding=False)
        else:
            self._lead(now, newest)

    def _stand_down(self, now: float) -> None:
        self.role = FOLLOWER
        rank = self.current().index(self.me) if self.me in self.current() else 0
        self._retry = now + 0.3 + RANK_DELAY_S * rank

    def _follow(self, now: float, leader: str | None) -> None:
        led = self.leads
        self.role, self.leader = FOLLOWER, leader
        self._leaderless = now
        self._forget_leading()
        self.events.append(("follow", led))
