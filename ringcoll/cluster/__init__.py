"""The ranks of a job, led by rank 0 to look at one another's hosts: what ``ringcoll doctor`` and
``ringcoll probe`` have in common under a launcher.

It needs nothing of the library but its version and knobs, so that doctor can say why
``ringcoll.init()`` fails: the ranks meet on a board (:mod:`~ringcoll.cluster.board`), and the first
rank of each host looks at the others by plain connections (:mod:`~ringcoll.cluster.pair`), when
rank 0 says so. What is made of it is pure, and a matter of the command.
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

# The other ranks wait longer than rank 0, so that it is rank 0 that says who is missing.
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
    """Every rank calls it. Rank 0 waits ``patience_s`` for the others to come, calls ``lead`` and
    returns what that found; the others do what it says, return None, and are released however
    ``lead`` ends.

    No look begins ``limit_s`` after the first. ``findings`` are those of this rank alone. Raises
    InvalidArgument, TransportError or Timeout if this rank cannot reach the meeting place, or rank
    0 is not there.
    """
    try:
        return _take_part(job, lead, patience_s, limit_s, findings)
    except Error as error:
        if job.rank == 0:
            raise
        where = f"rank {job.rank} on {socket.gethostname()}"  # rank 0 may never hear of it
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
    """Rank 0, once the ranks have met. ``reports`` are by ranks; ``views``, what was seen so far,
    by numbers of ``hosts``: (who looks, who is looked at). ``silent``: ranks that did not say what
    they saw. Nobody waits for them again, and what was seen of them, perhaps as they ended, is
    forgotten."""

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
        """Every first of a pair looks at the second, all at once; a host is the first of one pair
        at most. What is seen a second time counts where it is better. Pairs with a silent rank are
        left out. Once the time is over, nothing is done."""
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
        """Each pair alone, some of them at most: those that seemed odd, before they are called
        so."""
        for each in pairs[:_MOST_SECOND_LOOKS]:
            self.look([each], aims)

    def end(self) -> None:
        """Releases the others."""
        self._meeting.announce({"end": True})
        self._meeting.gather(
            [rank for rank in self._firsts if rank not in self.silent], _FAREWELL_S
        )

    def unseen(self) -> list[Finding]:
        """Ranks that stopped answering, and how many of the other pairs there was no time for."""
        findings = []
        if self.silent:
            detail = (
                f"{name_ranks(sorted(self.silent))} stopped answering: what was written there says "
                "why; if nothing, the process was killed, or its host or network went away"
            )
            findings.append(Finding("ranks", FAILED, detail))
        count = sum(rank not in self.silent for rank in self._firsts)
        pairs = count * (count - 1)
        missing = pairs - sum(not self._is_silent(each) for each in self.views)
        if missing:
            detail = f"{missing} of {pairs} were not examined: --limit gives more time"
            findings.append(Finding("pairs of hosts", NOTE, detail))
        return findings

    def _ask(self, looks: dict[int, int], aims: Aims) -> dict[int, View]:
        """What each of these ranks sees of the other; those that do not answer are left out."""
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
