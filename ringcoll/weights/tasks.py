"""The leader's tasks: which holder pulls which piece. Pure: no I/O, no clock.

Tasks belong to a stage, or to a refill. A task is one message "pull" to one holder, with many
pieces. The holder answers "pulled" with the places of those that it has got.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from ringcoll.weights import placement
from ringcoll.weights.catalog import Json
from ringcoll.weights.replica import Replica

Copies = dict[str, dict[str, list[int]]]
Regions = dict[str, dict[str, str]]

_MOST_TRIES = 3  # a holder that failed so often is not asked again for a piece of the same stage


@dataclass
class Task:
    """What one holder was told to pull."""

    owner: str
    holder: str
    pieces: Json = field(
        default_factory=dict
    )  # id -> [bytes, checksum, [[holder, region, offset]]]
    regions: Regions = field(default_factory=dict)
    hosts: dict[str, Json] = field(default_factory=dict)


class Tasks:
    """All tasks that are under way. ``out`` receives (holder, message) pairs."""

    def __init__(self, replica: Replica, out: list[tuple[str, Json]]) -> None:
        self._replica = replica
        self._out = out
        self._next = 0
        self._open: dict[tuple[str, str], Task] = {}  # not sent yet, by owner and holder
        self._sent: dict[int, Task] = {}
        self._places: dict[str, list[tuple[str, Json, Json]]] = {}  # by owner: what was pulled
        self._load: dict[str, int] | None = None
        self._refusals: dict[tuple[str, str], int] = {}  # (owner, holder)
        self._problems: dict[str, str] = {}
        self.retirable: Callable[[], list[int]] = list

    def add(
        self,
        owner: str,
        pid: str,
        piece: list[Any],
        copies: dict[str, list[int]],
        regions: Regions,
        without: Iterable[str] = (),
    ) -> bool:
        """Chooses a holder for a further copy of a piece, none of ``without``. False if there is
        no other."""
        members = self._replica.catalog.members
        if self._load is None:
            self._load = placement.loads(self._replica.catalog)
        having = [*copies, *self._pulling(pid)]
        lost = [m for m in members if m in self._replica.ended or m in self._replica.silent]
        lost += without
        lost += [m for m in members if self._refusals.get((owner, m), 0) >= _MOST_TRIES]
        holder = placement.choose(members, having, self._load, lost)
        if holder is None or (having and all(h not in regions for h in copies)):
            return False
        self._load[holder] = self._load.get(holder, 0) + piece[2]
        task = self._open.setdefault((owner, holder), Task(owner, holder))
        sources = [[source, *place] for source, place in copies.items()]
        task.pieces[pid] = [piece[2], piece[3], sources]
        for source, place in copies.items():
            region = str(place[0])
            task.regions.setdefault(source, {})[region] = regions[source][region]
            task.hosts[source] = members.get(source, {})
        return True

    def flush(self) -> None:
        """Sends what was added."""
        for task in self._open.values():
            self._next += 1
            self._sent[self._next] = task
            body: Json = {"k": "pull", "task": self._next, "e": self._replica.epoch}
            body["owner"] = task.owner
            body |= {"pieces": task.pieces, "regions": task.regions, "hosts": task.hosts}
            self._out.append((task.holder, body))
        self._open.clear()
        self._load = None

    def pulled(self, source: str, message: Json) -> str | None:
        """A holder answers. Returns the owner of the task, or None if nobody wants it any more."""
        task = self._sent.get(message["task"])
        if task is None or task.holder != source or message["e"] != self._replica.epoch:
            drop = {"k": "drop", "owner": message["owner"], "pids": list(message["places"])}
            self._out.append((source, drop))
            return None
        del self._sent[message["task"]]
        self._places.setdefault(task.owner, []).append(
            (source, message["places"], message["regions"])
        )
        if message["problem"]:
            key = (task.owner, source)
            self._refusals[key] = self._refusals.get(key, 0) + 1
            self._problems[task.owner] = message["problem"]
        return task.owner

    def collect(self, owner: str, copies: Copies, regions: Regions) -> list[str]:
        """Adds what was pulled for an owner to its copies. Returns the pieces."""
        pids = []
        for holder, places, handles in self._places.pop(owner, ()):
            if holder not in self._replica.catalog.members:
                continue
            regions.setdefault(holder, {}).update(handles)
            for pid, place in places.items():
                copies.setdefault(pid, {})[holder] = place
                pids.append(pid)
        return pids

    def lost(self, holder: str, refill: str) -> bool:
        """A holder does not answer. Given up are its tasks, and those of the owner ``refill`` that
        need it as a source. Returns whether there were any."""
        gone = [
            number
            for number, task in self._sent.items()
            if task.holder == holder or (task.owner == refill and _needs(task, holder))
        ]
        for number in gone:
            del self._sent[number]
        return bool(gone)

    def busy(self, owner: str) -> bool:
        """Whether tasks of an owner are under way."""
        return any(task.owner == owner for task in self._sent.values())

    def under_way(self, pid: str) -> int:
        """How many holders pull a piece."""
        return len(self._pulling(pid))

    def holders(self, owner: str) -> list[str]:
        """Who works for an owner."""
        return sorted({task.holder for task in self._sent.values() if task.owner == owner})

    def problem(self, owner: str) -> str:
        """Why a holder could not pull, or an empty text."""
        return self._problems.get(owner, "")

    def drop(self, owner: str, copies: Copies) -> None:
        """An owner has failed: holders free what they pulled for it."""
        self.collect(owner, copies, {})
        by_holder: dict[str, list[str]] = {}
        for pid, places in copies.items():
            for holder in places:
                by_holder.setdefault(holder, []).append(pid)
        for holder, pids in by_holder.items():
            if holder in self._replica.catalog.members:
                self._out.append((holder, {"k": "drop", "owner": owner, "pids": pids}))

    def forget(self, owner: str) -> None:
        """An owner has ended. Answers to its tasks that still come are dropped by pulled()."""
        self._sent = {n: task for n, task in self._sent.items() if task.owner != owner}
        self._refusals = {key: n for key, n in self._refusals.items() if key[0] != owner}
        self._problems.pop(owner, None)
        self._places.pop(owner, None)

    def _pulling(self, pid: str) -> list[str]:
        tasks = [*self._sent.values(), *self._open.values()]
        return [task.holder for task in tasks if pid in task.pieces]


def _needs(task: Task, source: str) -> bool:
    """Whether some piece of a task can be read from this holder alone."""
    return any(
        all(holder == source for holder, *_ in sources) for _, _, sources in task.pieces.values()
    )
