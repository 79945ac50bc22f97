"""Measures between the hosts of a job: the common base of ``ringcoll doctor`` and ``ringcoll
probe`` under a launcher.

It uses only the library's version and knobs, so that doctor can tell why ``ringcoll.init()`` fails.
The ranks meet on a board (:mod:`~ringcoll.cluster.board`), and rank 0 leads. On its request the
first rank of a host examines another host over plain sockets (:mod:`~ringcoll.cluster.pair`). The
commands judge the measurements, in pure functions.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ringcoll.cluster import about, pair
from ringcoll.cluster.board import open_board
from ringcoll.cluster.hosts import find_hosts, name_ranks
from ringcoll.cluster.meeting import Follow, Lead
from ringcoll.cluster.pair import Aims, Service, View
from ringcoll.environment import Job
from ringcoll.errors import Error
from ringcoll.findings import FAILED, NOTE, Finding

Found = TypeVar("Found")

# The other ranks wait longer than rank 0 by this, so that rank 0 reports the missing ranks.
_LONGER_S = 10.0
_FAREWELL_S = 3.0
_MOST_SECOND_LOOKS = 24


def take_part(
    job: Job,
    lead: Callable[[Leader], Found],
    patience_s: float,
    limit_s: float,
    findings: Sequence[Finding] = (),
) -> Found | None:
    """Every rank calls it. Rank 0 waits up to ``patience_s`` for the others, calls ``lead`` and
    returns its result. The other ranks do what ``lead`` asks for and return None. They return
    however ``lead`` ends.

    Once ``limit_s`` has passed since the ranks met, no further examination begins. ``findings`` are
    those of this rank alone. Raises InvalidArgument, TransportError or Timeout if this rank cannot
    reach the store, or rank 0 does not come.
    """
    try:
        return _take_part(job, lead, patience_s, limit_s, findings)
    except Error as error:
        if job.rank == 0:
            raise
        where = f"rank {job.rank} on {socket.gethostname()}"  # rank 0 may never get this error
        raise type(error)(f"{where}: {error}", error.rank) from error
    finally:
        job.tidy()


def _take_part(
    job: Job,
    lead: Callable[[Leader], Found],
    patience_s: float,
    limit_s: float,
    findings: Sequence[Finding],
) -> Found | None:
    patience_s += 0 if job.rank == 0 else _LONGER_S
    secret = os.environ.get("RINGCOLL_SECRET", "")
    board = open_board(job.store, secret, job.rank, time.monotonic() + patience_s)
    service = Service(job.rank)
    try:
        own = about.describe(job.rank, job.store, findings) | {"ports": service.ports}
        if job.rank != 0:
            _follow(Follow(board, job.rank, own, patience_s), job.rank, service, patience_s)
            return None
        meeting = Lead(board, job.size, own, patience_s)
        service.start(meeting.name)
        leader = Leader(meeting, job.size, limit_s)
        try:
            return lead(leader)
        finally:
            leader.end()
    finally:
        service.close()
        board.close()


class Leader:
    """The role of rank 0, once the ranks have met. ``reports`` are by rank. ``views`` are the
    measurements so far, by (observing host, observed host), as numbers in ``hosts``. ``silent`` are
    ranks that did not report a measurement: rank 0 does not wait for them again. It drops the views
    of their hosts, which may have been taken while these ranks ended."""

    def __init__(self, meeting: Lead, size: int, limit_s: float) -> None:
        self.size, self.reports = size, meeting.reports
        self.hosts = find_hosts(meeting.reports)
        self.views: dict[tuple[int, int], View] = {}
        self.silent: set[int] = set()
        self._meeting = meeting
        self._firsts = [host.first for host in self.hosts]
        meeting.announce({"reports": {str(r): self.reports[r] for r in self._firsts}})
        meeting.gather(list(self.reports), _FAREWELL_S)
        self._end = time.monotonic() + limit_s

    def look(self, pairs: list[tuple[int, int]], aims: Aims) -> None:
        """The first host of each pair examines the second, all pairs at the same time. A host may
        be the first of one pair at most. A repeated measurement counts if it is better. Pairs with
        a silent rank are left out. Does nothing after the time limit."""
        pairs = [each for each in pairs if not self._is_silent(each)]
        if not pairs or time.monotonic() > self._end:
            return
        seen = self._ask({self._firsts[a]: self._firsts[b] for a, b in pairs}, aims)
        for a, b in pairs:
            if view := seen.get(self._firsts[a]):
                before = self.views.get((a, b))
                self.views[a, b] = view.better(before) if before else view
        if len(seen) < len(pairs):
            self.silent |= {self._firsts[a] for a, _ in pairs} - seen.keys()
            kept = [each for each in self.views if not self._is_silent(each)]
            self.views = {each: self.views[each] for each in kept}

    def look_again(self, pairs: list[tuple[int, int]], aims: Aims) -> None:
        """Examines each pair alone, up to a limit of pairs. For pairs that seem to deviate, before
        they are reported."""
        for each in pairs[:_MOST_SECOND_LOOKS]:
            self.look([each], aims)

    def end(self) -> None:
        """Lets the other ranks return."""
        self._meeting.announce({"end": True})
        self._meeting.gather(
            [rank for rank in self._firsts if rank not in self.silent], _FAREWELL_S
        )

    def unseen(self) -> list[Finding]:
        """Findings about ranks that stopped answering, and about pairs that were not examined."""
        findings = []
        if self.silent:
            detail = (
                f"{name_ranks(sorted(self.silent))} stopped answering. Their output says why; "
                "without any, the process was killed, or its host or network is down"
            )
            findings.append(Finding("ranks", FAILED, detail))
        count = sum(rank not in self.silent for rank in self._firsts)
        pairs = count * (count - 1)
        missing = pairs - sum(not self._is_silent(each) for each in self.views)
        if missing:
            detail = f"{missing} of {pairs} were not examined in time: raise --limit"
            findings.append(Finding("pairs of hosts", NOTE, detail))
        return findings

    def _ask(self, looks: dict[int, int], aims: Aims) -> dict[int, View]:
        """Has each rank of ``looks`` examine the rank that it maps to. Returns the views by
        observing rank, without ranks that do not answer."""
        self._meeting.announce({"looks": {str(a): b for a, b in looks.items()}} | aims.encode())
        seen = {}
        if 0 in looks:
            seen[0] = pair.examine(self.reports[looks[0]], self._meeting.name, aims)
        answers = self._meeting.gather(list(looks), pair.LIMIT_S)
        return seen | {rank: View(**answer) for rank, answer in answers.items()}

    def _is_silent(self, pair: tuple[int, int]) -> bool:
        return any(self._firsts[host] in self.silent for host in pair)


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
            view = pair.examine(reports[str(looked_at)], follow.name, Aims.decode(step))
            follow.answer(view.encode())
