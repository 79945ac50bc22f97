"""The library's servers and clients of tables as objects of one process: shards are dictionaries.

They do what ringcoll/tables/native.py says, as far as tests of the Python side need it. Rules are
"sum" and "assign", and pulls do not wait for clocks. A server can be told to fail.
"""

from __future__ import annotations

import copy
import json
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import numpy
import pytest

from ringcoll.errors import Aborted, Error, Gone
from ringcoll.tables import native

Key = tuple[str, int]


@dataclass
class FakeShard:
    """Rows by id, and the last number of each client."""

    spec: dict[str, Any]
    workers: dict[int, int]
    rows: dict[int, numpy.ndarray] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)
    pushes: int = 0
    pulls: int = 0

    def change(self, client: int, number: int, what: str, rows: dict[int, Any], clock: int) -> None:
        if self.numbers.get(client, 0) >= number:
            return
        self.numbers[client] = number
        if what == "tick":
            self.workers[client] = clock + 1
        elif what == "join":
            current = min(self.workers.values(), default=0)
            self.workers[client] = max(self.workers.get(client, current), clock)
        elif what == "set_rule":
            self.spec["rule"] = rows[0]
        for id, values in rows.items() if what == "assign" or "push" in what else ():
            self.pushes += 1
            if what == "assign" or self.spec["rule"]["rule"] == "assign" or id not in self.rows:
                self.rows[id] = values.copy()
            else:
                self.rows[id] = self.rows[id] + values


class FakeTables:
    """All servers and clients, and what is wrong with them."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.servers: list[FakeServer] = []
        self.full: set[int] = set()  # agents without memory for shards, by id()
        self.led: dict[tuple[Key, int], FakeServer] = {}

    @classmethod
    def install(cls, patch: pytest.MonkeyPatch) -> FakeTables:
        """Puts these in place of the library's."""
        hub = cls()
        patch.setattr(native, "make_server", lambda agent: FakeServer(hub, agent))
        patch.setattr(native, "make_client", lambda agent, number: FakeClient(hub, agent, number))
        return hub

    def of(self, agent: Any) -> FakeServer:
        return next(server for server in self.servers if server.agent is agent)


class Lined:
    """An end of lines to servers."""

    def __init__(self, hub: FakeTables, agent: Any) -> None:
        self.hub, self.agent = hub, agent
        self.lines: dict[int, FakeServer] = {}

    def offer(self, server: int) -> bytes:
        return str(server).encode()

    def complete(self, server: int, answer: bytes) -> None:
        with self.hub.lock:
            self.lines[server] = self.hub.servers[int(answer)]

    def part(self, server: int) -> None:
        with self.hub.lock:
            del self.lines[server]

    def reach(self, server: int) -> FakeServer | None:
        """The server, if bytes get there."""
        found = self.lines.get(server)
        if found is None or not found.agent.alive or found.is_closed or not self.agent.alive:
            return None
        return found if self.agent.network.reaches(self.agent, found.agent) else None


class FakeServer(Lined):
    """See _core.TableServer."""

    def __init__(self, hub: FakeTables, agent: Any) -> None:
        super().__init__(hub, agent)
        self.shards: dict[Key, FakeShard] = {}
        self.epochs: dict[Key, int] = {}
        self.backups: dict[Key, list[int]] = {}  # of those that it leads
        self.filled: dict[Key, set[int]] = {}  # backups that have a copy
        self.clients: set[int] = set()
        self.dropped: list[int] = []
        self.until = 0.0
        self.is_closed = False
        self._events: list[tuple[Any, ...]] = []
        hub.servers.append(self)

    def accept(self, client: int, offer: bytes) -> bytes:
        with self.hub.lock:
            self.clients.add(client)
            return str(self.hub.servers.index(self)).encode()

    def drop(self, client: int) -> None:
        with self.hub.lock:
            self.clients.discard(client)
            self.dropped.append(client)
            for shard in self.shards.values():
                shard.workers.pop(client, None)

    def leave(self, client: int) -> None:
        self.drop(client)

    def host(self, uid: str, table: str, shard: int, shards: int, workers: Any) -> None:
        with self.hub.lock:
            assert (uid, shard) not in self.shards
            if id(self.agent) in self.hub.full:
                raise MemoryError("there is no memory for a shard")
            made = FakeShard(json.loads(table), dict.fromkeys(workers, 0))
            self.shards[uid, shard] = made

    def unhost(self, uid: str, shard: int) -> None:
        with self.hub.lock:
            for table in (self.shards, self.epochs, self.backups, self.filled):
                table.pop((uid, shard), None)  # type: ignore[attr-defined]

    def lead(self, uid: str, shard: int, epoch: int, backups: Any) -> None:
        with self.hub.lock:
            key = (uid, shard)
            assert self.hub.led.setdefault((key, epoch), self) is self, "two primaries"
            assert epoch >= self.epochs.get(key, 0)
            assert all(backup in self.lines for backup in backups), "a backup has no line"
            self.epochs[key], self.backups[key] = epoch, list(backups)
            self.filled[key] = set()
            self._fill(key)

    def follow(self, uid: str, shard: int, epoch: int) -> None:
        with self.hub.lock:
            key = (uid, shard)
            self.backups.pop(key, None)
            self.epochs[key] = max(epoch, self.epochs.get(key, 0))

    def serve_until(self, monotonic_s: float) -> None:
        self.until = monotonic_s

    def _fill(self, key: Key) -> None:
        for backup in self.backups[key]:
            there = self.reach(backup)
            if there is None or key not in there.shards or backup in self.filled[key]:
                continue
            if there.epochs.get(key, 0) > self.epochs[key]:
                continue
            there.shards[key] = copy.deepcopy(self.shards[key])
            there.epochs[key] = self.epochs[key]
            self.filled[key].add(backup)
            self._events.append(("installed", *key, self.epochs[key], backup))

    def events(self) -> str:
        with self.hub.lock:
            for key in self.backups:
                self._fill(key)
            events, self._events = self._events, []
            return json.dumps(events)

    def execute(
        self, key: Key, client: int, number: int, what: str, rows: dict[int, Any], clock: int
    ) -> str:
        """An operation of a client: "done", "not here", or "later"."""
        if key not in self.backups or (self.backups[key] and time.monotonic() >= self.until):
            return "not here"
        self._fill(key)
        wanted = list(self.backups[key])
        for backup in wanted:
            there = self.reach(backup)
            if there is None or there.epochs.get(key, 0) > self.epochs[key]:
                return "later"
            if backup not in self.filled[key] or key not in there.shards:
                return "later"
            there.shards[key].change(client, number, what, rows, clock)
        self.shards[key].change(client, number, what, rows, clock)
        self.shards[key].pulls += "pull" in what
        return "done"

    def stats(self) -> str:
        with self.hub.lock:
            shards = [
                {
                    "uid": uid,
                    "shard": index,
                    "role": "leads" if (uid, index) in self.backups else "follows",
                    "rows": len(shard.rows),
                    "bytes": sum(row.nbytes for row in shard.rows.values()),
                    "pushes": shard.pushes,
                    "pulls": shard.pulls,
                    "nan": 0,
                    "failed": 0,
                    "rule": shard.spec["rule"]["rule"],
                    "evicted": 0,
                    "late": 0,
                    "clock": min(shard.workers.values(), default=0),
                    "workers": shard.workers,
                }
                for (uid, index), shard in self.shards.items()
            ]
            return json.dumps({"shards": shards})

    def close(self) -> None:
        self.is_closed = True


class FakeRequest:
    """A call, which the client works at whenever it can."""

    def __init__(self, client: FakeClient, work: dict[str, Any]) -> None:
        self.client, self.work = client, work
        self.error: Error | None = None
        self.left: set[int] = set()  # shards that have not answered
        self.ended = threading.Event()

    def done(self) -> bool:
        return self.ended.is_set()

    def wait(self, timeout: float = -1.0) -> bool:
        end = None if timeout < 0 else time.monotonic() + timeout
        while not self.ended.is_set():
            if end is not None and time.monotonic() >= end:
                return False
            self.client.proceed()
            self.ended.wait(0.005)
        if self.error is not None:
            raise self.error
        return True


class FakeClient(Lined):
    """See _core.TableClient."""

    def __init__(self, hub: FakeTables, agent: Any, number: int) -> None:
        super().__init__(hub, agent)
        self.number = number
        self.specs: dict[str, tuple[dict[str, Any], int]] = {}
        self.routes: dict[str, list[int]] = {}
        self.requests: list[FakeRequest] = []
        self.stray: set[str] = set()
        self._count = 0

    def open(self, uid: str, spec: str, shards: int) -> None:
        self.specs[uid] = (json.loads(spec), shards)
        self.routes[uid] = [native.UNKNOWN] * shards

    def route(self, uid: str, servers: Any) -> None:
        with self.hub.lock:
            assert len(servers) == self.specs[uid][1]
            assert all(server in self.lines for server in servers if server > 0)
            self.routes[uid] = list(servers)
        self.proceed()

    def astray(self) -> str:
        with self.hub.lock:
            stray, self.stray = self.stray, set()
            return json.dumps({"tables": sorted(stray), "parted": []})

    def start(
        self,
        uid: str,
        what: str,
        ids: Any,
        values: Any,
        dtype: str,
        weight: float,
        clock: int,
        out: Any,
        attended: bool = False,
    ) -> FakeRequest:
        spec, shards = self.specs[uid]
        with self.hub.lock:
            self._count += 1
            request = FakeRequest(self, {"uid": uid, "what": what, "number": self._count})
            request.work |= {"ids": ids, "out": out, "clock": clock, "weight": weight}
            request.work["values"] = _rows_of(spec, what, ids, values)
            found = [0] if ids is None else ids.tolist()
            whole = what in ("join", "tick", "set_rule")
            request.left = set(range(shards)) if whole else {id % shards for id in found}
            self.requests.append(request)
            if not request.left:
                request.ended.set()
        self.proceed()
        return request

    def proceed(self) -> None:
        """Does what can be done. Calls on a table keep their order."""
        with self.hub.lock:
            waiting: set[str] = set()
            for request in list(self.requests):
                if request.work["uid"] not in waiting and not request.done():
                    self._work(request)
                if not request.done():
                    waiting.add(request.work["uid"])
            self.requests = [request for request in self.requests if not request.done()]

    def _work(self, request: FakeRequest) -> None:
        work = request.work
        uid, shards = work["uid"], self.specs[work["uid"]][1]
        for index in sorted(request.left):
            route = self.routes[uid][index]
            if route == native.LOST:
                self._end(request, Gone("the shard is lost"))
                return
            server = self.reach(route)
            if server is None:
                continue
            rows = {id: row for id, row in work["values"].items() if id % shards == index}
            if work["what"] == "set_rule":
                rows = work["values"]
            outcome = server.execute(
                (uid, index), self.number, work["number"], work["what"], rows, work["clock"]
            )
            if outcome == "not here":
                self.stray.add(uid)
            elif outcome == "done":
                request.left.discard(index)
                self._read(request, server.shards[uid, index], index)
        if not request.left:
            self._end(request, None)

    def _read(self, request: FakeRequest, shard: FakeShard, index: int) -> None:
        work = request.work
        out, spec = work["out"], self.specs[work["uid"]][0]
        if out is None:
            return
        if work["what"] == "join":
            out[0] = max(out[0], shard.workers[self.number])
            return
        dtype = numpy.dtype(spec["dtype"])
        ids = [0] if work["ids"] is None else work["ids"].tolist()
        rows = out.view(dtype).reshape(len(ids), -1)
        initial = spec["initial"].get("value", 0)
        for place, id in enumerate(ids):
            if id % self.specs[work["uid"]][1] == index:
                rows[place] = shard.rows.get(id, numpy.full(rows.shape[1], initial, dtype))

    def _end(self, request: FakeRequest, error: Error | None) -> None:
        request.error = error
        request.ended.set()

    def close(self) -> None:
        with self.hub.lock:
            for request in self.requests:
                self._end(request, Aborted("the client is closed"))


def _rows_of(spec: dict[str, Any], what: str, ids: Any, values: Any) -> dict[int, Any]:
    """The values of each row; those of an id that occurs more than once are summed."""
    if values is None:
        return {}
    if what == "set_rule":
        return {0: json.loads(bytes(values))}
    listed = [0] if ids is None else ids.tolist()
    if not listed:
        return {}
    array = values.view(spec["dtype"]).reshape(len(listed), -1)
    rows: dict[int, Any] = {}
    for id, row in zip(listed, array, strict=True):
        is_sum = id in rows and what != "assign"
        rows[id] = rows[id] + row if is_sum else row.copy()
    return rows
