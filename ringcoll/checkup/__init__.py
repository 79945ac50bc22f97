"""``ringcoll doctor`` under a launcher: every pair of hosts is examined, and what deviates named.

Rank 0 leads and prints. It needs nothing of the library but its version and knobs, so that it can
say why ``ringcoll.init()`` fails: the ranks meet on a board (:mod:`~ringcoll.checkup.board`), and
the first rank of each host examines the others by plain connections
(:mod:`~ringcoll.checkup.pair`), in rounds in which each host has one partner. The judgement is
pure (:mod:`~ringcoll.checkup.verdict`).
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from typing import Any

from ringcoll.checkup import about, pair
from ringcoll.checkup.board import open_board
from ringcoll.checkup.hosts import Host, find_hosts, rounds
from ringcoll.checkup.meeting import Follow, Lead
from ringcoll.checkup.pair import Service, View
from ringcoll.checkup.speeds import suspects
from ringcoll.checkup.verdict import judge
from ringcoll.environment import Job
from ringcoll.findings import NOTE, Finding

# The other ranks wait longer than rank 0, so that it is rank 0 that says who is missing.
_LONGER_S = 10.0
_FAREWELL_S = 3.0
# Pairs that seemed odd are looked at again, alone, before they are called so.
_MOST_SECOND_LOOKS = 24


@dataclass
class Checkup:
    """What rank 0 knows in the end."""

    hosts: list[Host]
    views: dict[tuple[int, int], View]
    findings: list[Finding]

    def as_json(self) -> dict[str, Any]:
        names = [host.name for host in self.hosts]
        views = [
            {"from": names[a], "to": names[b]} | view.encode()
            for (a, b), view in sorted(self.views.items())
        ]
        return {"hosts": [asdict(host) for host in self.hosts], "views": views}


def check(job: Job, findings: list[Finding], patience_s: float, limit_s: float) -> Checkup | None:
    """Examines the hosts of a job; every rank calls it. None on ranks other than 0.

    ``findings`` are those of this rank alone. Rank 0 waits ``patience_s`` for the others to come,
    and begins no round after ``limit_s`` seconds of them. Raises InvalidArgument, TransportError or
    Timeout if this rank cannot reach the meeting place, or rank 0 is not there.
    """
    patience_s += 0 if job.rank == 0 else _LONGER_S
    secret = os.environ.get("RINGCOLL_SECRET", "")
    board = open_board(job.store, secret, job.rank, time.monotonic() + patience_s)
    service = Service(job.rank)
    try:
        own = about.describe(job.rank, job.store, findings) | {"ports": service.ports}
        if job.rank == 0:
            lead = Lead(board, job.size, own, patience_s)
            service.start(lead.name)
            return _Leader(lead, job.size).check(limit_s)
        _follow(Follow(board, job.rank, own, patience_s), job.rank, service, patience_s)
        return None
    finally:
        service.close()
        board.close()


class _Leader:
    def __init__(self, lead: Lead, size: int) -> None:
        self._lead, self._size = lead, size
        self._hosts = find_hosts(lead.reports)
        self._firsts = [host.first for host in self._hosts]
        self._views: dict[tuple[int, int], View] = {}

    def check(self, limit_s: float) -> Checkup:
        self._lead.announce({"reports": {str(r): self._lead.reports[r] for r in self._firsts}})
        self._lead.gather(list(self._lead.reports), _FAREWELL_S)
        end = time.monotonic() + limit_s
        for pairs in rounds(len(self._hosts)):
            if pairs and time.monotonic() < end:
                self._look(pairs)
        for again in suspects(self._views)[:_MOST_SECOND_LOOKS]:
            if time.monotonic() < end:
                self._look([again])
        self._lead.announce({"end": True})
        self._lead.gather(self._firsts, _FAREWELL_S)
        findings = judge(self._lead.reports, self._size, self._hosts, self._views)
        return Checkup(self._hosts, self._views, findings + self._unseen())

    def _look(self, pairs: list[tuple[int, int]]) -> None:
        """Every first of a pair looks at the second."""
        looks = {self._firsts[a]: self._firsts[b] for a, b in pairs}
        self._lead.announce({"looks": {str(a): b for a, b in looks.items()}})
        own = None
        if 0 in looks:
            own = pair.examine(self._lead.reports[looks[0]], self._lead.name)
        answers = self._lead.gather(list(looks), pair.LIMIT_S)
        for a, b in pairs:
            view = own if self._firsts[a] == 0 else None
            if self._firsts[a] in answers:
                view = View(**answers[self._firsts[a]])
            if view is not None:
                before = self._views.get((a, b))
                self._views[a, b] = view.better(before) if before else view

    def _unseen(self) -> list[Finding]:
        count = len(self._hosts)
        missing = count * (count - 1) - len(self._views)
        if not missing:
            return []
        detail = f"{missing} of {count * (count - 1)} were not examined: --limit gives more time"
        return [Finding("pairs of hosts", NOTE, detail)]


def _follow(follow: Follow, rank: int, service: Service, patience_s: float) -> None:
    service.start(follow.name)
    reports: dict[str, Any] = follow.next(patience_s)["reports"]
    follow.answer({})
    while str(rank) in reports:
        step = follow.next(patience_s + pair.LIMIT_S)
        if step.get("end"):
            follow.answer({})
            return
        looked_at = step["looks"].get(str(rank))
        if looked_at is not None:
            view = pair.examine(reports[str(looked_at)], follow.name)
            follow.answer(view.encode())
