"""The leader's part in commits: stages, copies, and the new version. Pure: no I/O, no clock.

A *stage* is what a writers' group has sent for a commit that has not been decided. It lives in the
leader alone. If the leader is lost, the writers send it to the next one.

1. *gathering*: each rank sends "stage" with its entries. When all have come, each is told what it
   copies.
2. *copying*: each rank sends "staged" with the places and checksums of its pieces. For each piece
   further holders are told to pull it.
3. *appending*: all pieces have their copies, and the version is proposed to the log. When that is
   committed, the writers are answered.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from ringcoll.errors import Error, InvalidArgument, PeerLost, Timeout
from ringcoll.weights import saved_tables, slices
from ringcoll.weights.arrays import itemsize
from ringcoll.weights.catalog import Json
from ringcoll.weights.replica import Replica
from ringcoll.weights.stages import Plan, make_plan
from ringcoll.weights.tasks import Tasks

Ask = tuple[str, int]  # who asked, and the id of the request

_MOST_FAILURES = 1024
_MOST_ENDED = 4096


@dataclass
class Stage:
    """A commit that has not been decided. ``asks`` has the request of each rank that waits."""

    group: str
    sequence: int
    size: int
    deadline: float
    order: int
    writers: dict[int, str] = field(default_factory=dict)
    tokens: dict[int, str] = field(default_factory=dict)
    entries: dict[int, list[Any]] = field(default_factory=dict)
    metadata: dict[int, Any] = field(default_factory=dict)
    time: float = 0.0  # since 1970, when the last rank called
    deleted: set[str] = field(default_factory=set)
    with_tables: set[int] = field(default_factory=set)  # ranks whose entries have shards of tables
    asks: dict[int, Ask] = field(default_factory=dict)
    plan: Plan | None = None
    placed: dict[int, Json] = field(default_factory=dict)
    pieces: dict[str, list[Any]] = field(default_factory=dict)
    copies: dict[str, dict[str, list[int]]] = field(default_factory=dict)  # by piece
    regions: dict[str, dict[str, str]] = field(default_factory=dict)
    trouble: float | None = None  # when a holder could not pull a piece
    proposal: Json | None = None
    problem: str = ""  # why there are fewer copies than wanted

    @property
    def name(self) -> str:
        return f"{self.group}.{self.sequence}"

    def pid(self, rank: int, entry: int) -> str:
        """The id of the piece that a rank makes of one of its entries."""
        return f"{self.name}/{rank}/{entry}"


class Commits:
    """The stages of all groups. Answers go to ``answers`` as (client, request, body or error)."""

    def __init__(self, replica: Replica, tasks: Tasks) -> None:
        self._replica = replica
        self._tasks = tasks
        self._stages: dict[tuple[str, int], Stage] = {}
        self._ready: deque[Stage] = deque()
        self._appending: Stage | None = None
        self._known: dict[tuple[str, int], tuple[str, list[Any]]] = {}  # entries by group and rank
        self._plans: dict[str, tuple[dict[int, str], Plan]] = {}
        self._failed: dict[str, tuple[int, Error]] = {}
        self._groups: dict[str, dict[str, Json]] = {}  # writers by group, and where they are
        self._ended: dict[str, None] = {}  # clients that ended lately
        self._order = 0
        self.answers: list[tuple[str, int, Json | Error]] = []

    # Requests.

    def stage(self, now: float, client: str, request: int, message: Json) -> None:
        """A rank sends its entries."""
        group, sequence, rank = message["group"], message["sequence"], message["rank"]
        stage = self._stages.get((group, sequence))
        if stage is None and self._answer_decided(client, request, group, sequence):
            return
        entries = self._entries_of(message)
        if entries is None:
            self.answers.append((client, request, {"again": "entries"}))
            return
        if stage is None:
            self._order += 1
            stage = Stage(group, sequence, message["size"], now + message["timeout"], self._order)
            self._stages[group, sequence] = stage
        stage.writers[rank] = client
        stage.asks[rank] = (client, request)
        stage.tokens[rank], stage.entries[rank] = message["token"], entries
        stage.metadata[rank] = message["metadata"]
        stage.time = max(stage.time, message["time"])
        stage.deleted.update(message["deleted"])
        if message.get("tables"):
            stage.with_tables.add(rank)
        if stage.plan is not None:
            self._answer_plan(stage, rank)
        elif len(stage.entries) == stage.size:
            if not self._ask_for_tables(stage):
                self._plan(stage)
        else:
            self._check_writers(stage)

    def staged(self, now: float, client: str, request: int, message: Json) -> None:
        """A rank has copied: "pieces" [[entry, region, offset, checksum]], and "regions"."""
        group, sequence, rank = message["group"], message["sequence"], message["rank"]
        stage = self._stages.get((group, sequence))
        if stage is None or stage.plan is None:
            if stage is not None or not self._answer_decided(client, request, group, sequence):
                self.answers.append((client, request, {"again": "stage"}))
            return
        stage.asks[rank] = (client, request)
        if rank in stage.placed:
            return
        stage.placed[rank] = message
        stage.regions[client] = message["regions"]
        for entry, region, offset, checksum in message["pieces"]:
            _, dtype, shape, begin, length = stage.entries[rank][entry]
            length = shape if length is None else length
            size = slices.size_of(length) * itemsize(dtype)
            pid = stage.pid(rank, entry)
            stage.pieces[pid] = [begin or [0] * len(shape), length, size, checksum]
            stage.copies[pid] = {client: [region, offset]}
        self._replicate(stage, [stage.pid(rank, each[0]) for each in message["pieces"]])
        self._advance(now, stage)

    def abandon(self, now: float, message: Json) -> None:
        """A rank has given up."""
        stage = self._stages.get((message["group"], message["sequence"]))
        if stage is not None and stage.proposal is None:
            rank = message["rank"]
            self._fail(stage, Timeout(f"rank {rank} has given up the commit", rank))

    # Events.

    def pulled(self, now: float) -> None:
        """Some task has ended."""
        for stage in list(self._stages.values()):
            self._advance(now, stage)

    def note_problem(self, now: float, name: str) -> None:
        """A holder could not pull all that it was told to, for a stage with this name."""
        for stage in self._stages.values():
            if stage.name == name:
                stage.trouble = now

    def committed(self, now: float) -> list[int]:
        """The log has been committed further. Returns the versions that are new."""
        new = []
        stage = self._appending
        if stage is not None and stage.proposal is not None:
            record = stage.proposal["record"]
            if record["index"] is not None and record["index"] <= self._replica.committed:
                self._appending = None
                new = self._finish(stage, record["n"])
        self._append_next(now)
        return new

    def lost(self, client: str, why: str) -> None:
        """A client is gone. Its stages fail, unless they are being appended already."""
        for stage in list(self._stages.values()):
            writers = list(self._groups.get(stage.group, ()))
            if client in writers and stage.proposal is None:
                rank = writers.index(client)
                self._fail(stage, PeerLost(f"rank {rank} of the writers {why}", rank))

    def note_ended(self, client: str) -> None:
        """A client's process has ended. Stages that wait for it later fail at once. What is known
        of its group is forgotten: if there are other ranks, they send it again."""
        for group in [g for g, writers in self._groups.items() if client in writers]:
            del self._groups[group]
            self._plans.pop(group, None)
            self._known = {key: known for key, known in self._known.items() if key[0] != group}
        self._ended[client] = None
        while len(self._ended) > _MOST_ENDED:
            del self._ended[next(iter(self._ended))]

    def missing(self) -> list[str]:
        """The writers from whom nothing has come, though others of their group wait for them."""
        found = []
        for stage in self._stages.values():
            if stage.plan is None:
                writers = list(self._groups.get(stage.group, ()))
                found += [w for rank, w in enumerate(writers) if rank not in stage.entries]
        return found

    def contact(self, writer: str) -> Json | None:
        """Where a writer is."""
        return next((each[writer] for each in self._groups.values() if writer in each), None)

    def tick(self, now: float) -> None:
        for stage in list(self._stages.values()):
            if now >= stage.deadline:
                self._expire(stage)
            elif stage.trouble is not None:
                self._advance(now, stage)

    def close(self) -> list[Ask]:
        """This holder does not lead any more. Returns the requests that wait."""
        return [ask for stage in self._stages.values() for ask in stage.asks.values()]

    def spared(self) -> set[str]:
        """The stages that live."""
        return {stage.name for stage in self._stages.values()}

    # Steps.

    def _answer_decided(self, client: str, request: int, group: str, sequence: int) -> bool:
        """Answers a request about a commit that is decided already."""
        last, number = self._replica.catalog.groups.get(group, (0, 0))
        failed = self._failed.get(group)
        if sequence == last:
            body: Json | Error = {"version": number} if self._replica.idle() else {"wait": True}
        elif sequence < last:
            body = InvalidArgument(f"commit {sequence} of the group was decided long ago")
        elif failed is not None and sequence <= failed[0]:
            body = failed[1]
        else:
            return False
        self.answers.append((client, request, body))
        return True

    def _entries_of(self, message: Json) -> list[Any] | None:
        """The entries of a message, or those that were sent earlier with the same token."""
        key = (message["group"], message["rank"])
        if message.get("entries") is not None:
            self._known[key] = (message["token"], message["entries"])
            self._groups[message["group"]] = message["writers"]
        token, entries = self._known.get(key, (None, []))
        return entries if token == message["token"] else None

    def _check_writers(self, stage: Stage) -> None:
        for rank, writer in enumerate(self._groups.get(stage.group, ())):
            if writer in self._ended and rank not in stage.entries:
                self._fail(stage, PeerLost(f"rank {rank} of the writers has ended", rank))
                return

    def _ask_for_tables(self, stage: Stage) -> bool:
        """All ranks have called, so all that they have pushed is in the tables: now they save the
        tables' shards, and send their entries again. False if all have done so."""
        tables = self._replica.tables(self._replica.visible())
        ranks = [rank for rank in stage.entries if rank not in stage.with_tables]
        if not tables or not ranks:
            return False
        for rank in ranks:
            del stage.entries[rank]
            self.answers.append(
                (*stage.asks.pop(rank), {"again": "tables", "tables": dict(tables)})
            )
        return True

    def _plan(self, stage: Stage) -> None:
        tokens, plan = self._plans.get(stage.group, ({}, None))
        if plan is None or tokens != stage.tokens:
            try:
                plan = make_plan(stage.entries)
            except Error as error:
                self._fail(stage, error)
                return
            self._plans[stage.group] = (stage.tokens, plan)
        stage.plan = plan
        for rank in list(stage.asks):
            self._answer_plan(stage, rank)

    def _answer_plan(self, stage: Stage, rank: int) -> None:
        assert stage.plan is not None
        client, request = stage.asks.pop(rank)
        mine = stage.plan.copies[rank]
        every = len(mine) == len(stage.entries[rank])
        self.answers.append((client, request, {"copy": "all" if every else mine}))

    def _replicate(self, stage: Stage, pids: list[str]) -> None:
        """Has pieces pulled by further holders, as far as there are any."""
        members = self._replica.catalog.members
        for pid in pids:
            having = [h for h in stage.copies[pid] if h in members]
            lacking = self._replica.catalog.wanted_copies() - len(having)
            lacking -= self._tasks.under_way(pid)
            for _ in range(lacking):
                source = (stage.copies[pid], stage.regions)
                if not self._tasks.add(stage.name, pid, stage.pieces[pid], *source):
                    break
        self._tasks.flush()

    def _advance(self, now: float, stage: Stage) -> None:
        """Goes on with a stage whose ranks have all copied and whose tasks have ended."""
        if stage.plan is None or stage.proposal is not None or len(stage.placed) < stage.size:
            return
        self._tasks.collect(stage.name, stage.copies, stage.regions)
        self._replicate(stage, list(stage.pieces))
        if not self._tasks.busy(stage.name) and stage not in self._ready:
            bare = [pid for pid in stage.pieces if not self._member_copies(stage, pid)]
            if bare:
                why = self._tasks.problem(stage.name) or "no holder could take a copy"
                self._fail(stage, PeerLost(f"the commit has pieces that no holder has: {why}"))
            elif self._is_safe(stage):
                lacks = self._lacks_copies(stage)
                stage.problem = self._tasks.problem(stage.name) if lacks else ""
                self._ready.append(stage)
                self._append_next(now)

    def _is_safe(self, stage: Stage) -> bool:
        """Whether no piece is alone on a holder that may have ended: where others could not pull,
        its holder has to be heard after that."""
        if stage.trouble is None:
            return True
        copies = [list(self._member_copies(stage, pid)) for pid in stage.pieces]
        alone = {holders[0] for holders in copies if len(holders) == 1}
        return all(self._replica.has_heard(holder, stage.trouble) for holder in alone)

    def _lacks_copies(self, stage: Stage) -> bool:
        wanted = self._replica.catalog.wanted_copies()
        return any(len(self._member_copies(stage, pid)) < wanted for pid in stage.pieces)

    def _member_copies(self, stage: Stage, pid: str) -> dict[str, list[int]]:
        members = self._replica.catalog.members
        return {h: place for h, place in stage.copies[pid].items() if h in members}

    def _append_next(self, now: float) -> None:
        """Proposes the next version. One at a time, since each is based on the one before."""
        if self._appending is not None or not self._ready or not self._replica.idle():
            return
        stage = self._ready.popleft()
        self._appending = stage
        stage.proposal = self._propose(stage)
        self._replica.propose(now, stage.proposal)

    def _propose(self, stage: Stage) -> Json:
        assert stage.plan is not None
        catalog = self._replica.catalog
        number = catalog.newest + 1
        base = catalog.versions[max(catalog.versions)]["tensors"] if catalog.versions else {}
        base = saved_tables.without_replaced(base, stage.plan.tensors)
        tensors = {name: tensor for name, tensor in base.items() if name not in stage.deleted}
        sizes = {name: catalog_bytes(tensor) for name, tensor in tensors.items()}
        for name, (dtype, shape, parts) in stage.plan.tensors.items():
            pids = [stage.pid(part.rank, part.entry) for part in parts]
            tensors[name] = [dtype, list(shape), pids]
            sizes[name] = catalog_bytes(tensors[name])
        given = [stage.metadata[rank] for rank in sorted(stage.metadata)]
        copies: dict[str, dict[str, list[int]]] = {}
        for pid in stage.pieces:
            for holder, place in self._member_copies(stage, pid).items():
                copies.setdefault(holder, {})[pid] = place
        record = {"n": number, "uid": stage.name, "index": None, "bytes": sum(sizes.values())}
        record["metadata"] = next((one for one in given if one is not None), None)
        record |= {"time": stage.time, "tensors": tensors}
        return {
            "op": "version",
            "record": record,
            "group": stage.group,
            "sequence": stage.sequence,
            "pieces": stage.pieces,
            "copies": copies,
            "regions": {h: regions for h, regions in stage.regions.items() if h in copies},
            "retire": self._tasks.retirable(),
        }

    def _finish(self, stage: Stage, number: int) -> list[int]:
        self._forget(stage)
        there = number in self._replica.catalog.versions
        body: Json | Error = {"version": number, "problem": stage.problem}
        if not there:
            body = PeerLost(f"the holders of version {number} ended before others had a copy")
        self.answers += [(*ask, body) for ask in stage.asks.values()]
        return [number] if there else []

    def _expire(self, stage: Stage) -> None:
        ranks = [rank for rank in range(stage.size) if rank not in stage.entries]
        if stage.plan is not None:
            ranks = [rank for rank in range(stage.size) if rank not in stage.placed]
        if ranks:
            verb = "called commit" if stage.plan is None else "copied its tensors"
            text = f"rank {ranks[0]} of the writers has not {verb} before the deadline"
            self._fail(stage, Timeout(text, ranks[0]))
        elif stage.proposal is None:
            holders = ", ".join(self._tasks.holders(stage.name)) or "an earlier commit"
            self._fail(stage, Timeout(f"the commit waits for copies by {holders}"))
        else:
            self._stall(stage)

    def _stall(self, stage: Stage) -> None:
        """The version is in the log, and cannot be taken back. Its writers stop waiting."""
        blockers = ", ".join(self._replica.blockers())
        error = Timeout(
            f"the holders {blockers} do not answer, and the others are too few to go on without "
            "them; the commit may become a version when they come back"
        )
        self.answers += [(*ask, error) for ask in stage.asks.values()]
        stage.asks.clear()
        stage.deadline = float("inf")

    def _fail(self, stage: Stage, error: Error) -> None:
        self._forget(stage)
        if stage in self._ready:
            self._ready.remove(stage)
        self._failed.pop(stage.group, None)
        self._failed[stage.group] = (stage.sequence, error)
        while len(self._failed) > _MOST_FAILURES:
            del self._failed[next(iter(self._failed))]
        self._tasks.drop(stage.name, stage.copies)
        self.answers += [(*ask, error) for ask in stage.asks.values()]

    def _forget(self, stage: Stage) -> None:
        self._stages.pop((stage.group, stage.sequence), None)
        self._tasks.forget(stage.name)


def catalog_bytes(tensor: list[Any]) -> int:
    """The bytes of one tensor of a version's record."""
    return slices.size_of(tensor[1]) * itemsize(tensor[0])
