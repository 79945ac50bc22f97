"""What a holder serves: brings the shards of its server in line with the catalog.

The catalog says who serves what, and a server does what it is told (native.py). All of that happens
on two threads of this module. One follows the catalog, and may wait for other servers to answer.
The other one answers their requests, and never waits: so two servers can open lines to each other.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy

from ringcoll import _core
from ringcoll.errors import Error
from ringcoll.log import log
from ringcoll.tables import native, saving
from ringcoll.tables.lines import Lines
from ringcoll.tables.numbers import is_guest, server_number
from ringcoll.weights import agents
from ringcoll.weights.catalog_tables import Json, View
from ringcoll.weights.directory import reply
from ringcoll.weights.holder import Worker

if TYPE_CHECKING:
    from ringcoll.weights.control import Control

Key = tuple[str, int]  # a table's uid and the shard's number
Wanted = dict[Key, tuple[Json, Json]]  # the record of the table, and the state of the shard

_AGAIN_S = 0.3  # before what failed is tried again
_APART_S = 3.0  # a holder that cannot be reached for so long is reported to the leader
_REPORT_S = 1.0  # between reports of use, and of shards that were filled
_MOST_GONE = 4096  # clients that are remembered to have ended
_KEPT_S = 120.0  # a copy for a commit that nobody has given back is freed after this time
_SILENT_S = 30.0  # a worker that is not heard for so long leaves, or clocks would wait


@dataclass
class _Saved:
    """A copy of a shard, which a client reads."""

    region: Any
    client: str
    since: float


@dataclass
class _Served:
    """A shard that the server has. ``told`` is what the server was told of its part in it."""

    filling: bool
    told: tuple[Any, ...] = ()
    state: Json | None = None  # of the catalog, if all of it has been done
    filling_epoch: int = 0  # at which the server was last told to fill another holder

    def is_filled_at(self, shard: Json) -> bool:
        """Whether the holder that is being filled may have been filled."""
        return shard["filling"] is not None and self.filling_epoch == shard["epoch"]


class Serving:
    """The shards of one holder. The methods may be called with the store's lock: none waits."""

    def __init__(self, control: Control, agent: Any, client: int, read: saving.Read) -> None:
        self._control = control
        self._read = read
        self._agent = agent
        self._number = server_number(client)
        self._lock = threading.Lock()
        self._server: _core.TableServer | None = None
        self._closed = False
        self._follower = Worker("ringcoll-tables-follow")
        self._answerer = Worker("ringcoll-tables-answer")
        self._queued = False
        self._again: float | None = None
        self._next_report = 0.0
        self._followed: View | None = None  # nothing is led any more that it gives to others
        # Of the follower's thread.
        self._lines: Lines | None = None
        self._mine: dict[Key, _Served] = {}
        self._troubled: set[Key] = set()  # shards of which a log message has told
        self._unreached: dict[tuple[Key, str], float] = {}  # since when
        self._filled: dict[Key, Json] = {}  # what was told the leader
        self._uses: dict[Key, int] = {}  # at the last report
        self._away: set[int] = set()  # ranks that are workers, and whose holders are away
        self._unheard: dict[int, float] = {}  # workers of which nothing is heard: since when
        # Of both threads, with the lock.
        self._clients: dict[str, set[int]] = {}  # node -> its clients and servers with lines
        self._silent: dict[str, float] = {}  # nodes that do not answer any more: since when
        self._gone: dict[int, None] = {}  # clients that have ended, the latest last
        # Of the answerer's thread.
        self._saved: dict[int, _Saved] = {}
        self._tokens = 0

    # Inputs, with the store's lock.

    def update(self) -> None:
        """The catalog has changed."""
        if not self._queued and not self._closed:
            self._queued = True
            self._follower.submit(self._follow)

    def line(self, source: str, message: Json) -> None:
        """A client or server asks for a line."""
        self._answer(source, message, lambda: self._accept(source, message))

    def shards(self, source: str, message: Json) -> None:
        """A client asks for what the server has of a table."""
        self._answer(source, message, lambda: {"shards": self._stats(message["uid"])})

    def save(self, source: str, message: Json) -> None:
        """A rank that commits asks for a copy of a shard, or does not need one any more."""
        self._answer(source, message, lambda: self._save(source, message))

    def down(self, peer: str, ended: bool) -> None:
        """A client or server does not answer, or has ended."""
        if self._closed:
            return
        self._follower.submit(lambda: self._close_line(peer))
        self._answerer.submit(lambda: self._lose_clients_of(peer, ended))

    def up(self, peer: str) -> None:
        """A client or server can be reached."""
        if not self._closed:
            self._answerer.submit(lambda: self._hear(peer))

    def tick(self) -> None:
        """To be called several times a second."""
        if self._server is None or self._closed:
            return
        self._serve_on()
        now = time.monotonic()
        if self._again is not None and now >= self._again:
            self.update()
        if now >= self._next_report:
            self._next_report = now + _REPORT_S
            self._follower.submit(self._report)
        elif self._is_filling():
            self._follower.submit(self._tell_filled)

    def _serve_on(self) -> None:
        """Lets the server answer clients for as long as no other holder can have been told to serve
        its shards: it may be cut off, or have been stopped. Called with the store's lock."""
        node = self._control.node
        if node is None or self._server is None:
            return
        if node.replica.tables(node.replica.index) is self._followed:
            self._server.serve_until(node.replica.serves_until)

    def close(self) -> None:
        """Ends the threads and the server."""
        self._closed = True
        self._follower.stop(5.0)
        self._answerer.stop(5.0)
        with self._lock:
            server, self._server = self._server, None
        if server is not None:
            server.close()

    # The follower's thread.

    def _get_server(self) -> _core.TableServer:
        with self._lock:
            if self._server is None:
                self._server = native.make_server(self._agent)
                self._server.serve_until(0.0)
            return self._server

    def _follow(self) -> None:
        """Does what the catalog says, as far as it is committed."""
        self._queued, self._again = False, None
        node = self._control.node
        if node is None or self._closed:
            return
        with self._control.lock:
            view = node.replica.tables(node.replica.committed)
            present, away = set(node.replica.catalog.members), set(node.replica.catalog.away)
        me = self._control.me
        wanted = shards_of(view, me)
        if not wanted and not self._mine:
            self._followed = view
            return
        server = self._get_server()
        if self._lines is None:
            self._lines = Lines(server, self._control.session, self._number)
        for key in [key for key in self._mine if key not in wanted]:
            self._give_up(server, key)
        # First what others lead now, which is done at once. The rest may wait for other servers.
        led = {key for key, (_, shard) in wanted.items() if shard["holders"][:1] == [me]}
        self._serve_all(server, wanted, self._mine.keys() - led)
        with self._control.lock:
            self._followed = view
            self._serve_on()
        self._serve_all(server, wanted, wanted.keys())
        self._tell_node(wanted)
        self._away = self._workers_of(view, lambda holder: holder in away)
        self._drop_ended(server, self._workers_of(view, lambda h: h not in present | away))

    def _serve_all(self, server: _core.TableServer, wanted: Wanted, keys: Collection[Key]) -> None:
        for key in sorted(keys):
            record, shard = wanted[key]
            mine = self._mine.get(key)
            if (mine is None or mine.state is not shard) and self._control.me not in shard["away"]:
                self._serve(server, key, record, shard)

    def _serve(self, server: _core.TableServer, key: Key, record: Json, shard: Json) -> None:
        """Brings one shard in line with the catalog."""
        me = self._control.me
        try:
            mine = self._host(server, key, record, shard["filling"] == me)
            if shard["holders"][:1] == [me]:
                done = self._lead(server, key, mine, shard)
            else:
                since = shard["since"]
                self._tell(mine, ("follow", since), lambda: server.follow(*key, since))
                done = True
        except (Error, MemoryError) as error:
            if key not in self._troubled:
                log.warning("tables: shard %d of %s is not served: %s", key[1], key[0], error)
            self._troubled.add(key)
            if key not in self._mine:
                self._send_apart(key, shard, me)
            done = False
        if done:
            self._mine[key].state = shard
            self._troubled.discard(key)
        else:
            self._again = time.monotonic() + _AGAIN_S

    def _host(self, server: _core.TableServer, key: Key, record: Json, filling: bool) -> _Served:
        """The shard of the server, which is made if it is not there. A copy that this process has
        from earlier stays, since the one that is to come takes its place, and may be there
        already."""
        mine = self._mine.get(key)
        if mine is None:
            workers = [client for client, _ in record["workers"]]
            spec, count = json.dumps(record["spec"]), len(record["shards"])
            if record["from"] is not None and not filling:
                columns, said = saving.load(record["spec"]["name"], key[1], record, self._read)
                server.host_saved(key[0], spec, key[1], count, workers, columns, said)
            else:
                server.host(key[0], spec, key[1], count, workers)
            mine = self._mine[key] = _Served(filling)
        mine.filling = filling
        return mine

    def _give_up(self, server: _core.TableServer, key: Key) -> None:
        del self._mine[key]
        self._filled.pop(key, None)
        server.unhost(*key)

    def _lead(self, server: _core.TableServer, key: Key, mine: _Served, shard: Json) -> bool:
        """Becomes the primary, with all backups: it must answer nothing that one of them lacks. A
        holder that is being filled may come later. But once it is there, it counts until the epoch
        changes, since the leader may have been told that it is filled. False if some holder is not
        there yet."""
        assert self._lines is not None
        lacking = [h for h in self._others(shard) if not self._reach(key, shard, h)]
        needed = {*shard["holders"], *([shard["filling"]] if mine.is_filled_at(shard) else [])}
        if needed.intersection(lacking):
            return False
        holders = [holder for holder in self._others(shard) if holder not in lacking]
        numbers = [self._lines.number(holder) for holder in holders]
        lines = [self._lines.generation(holder) for holder in holders]
        told = ("lead", shard["epoch"], numbers, lines)
        if shard["filling"] in holders:
            mine.filling_epoch = shard["epoch"]
        self._tell(mine, told, lambda: server.lead(*key, shard["epoch"], numbers))
        return not lacking

    @staticmethod
    def _others(shard: Json) -> list[str]:
        filling = [shard["filling"]] if shard["filling"] else []
        return [*shard["holders"][1:], *filling]

    @staticmethod
    def _tell(mine: _Served, told: tuple[Any, ...], call: Callable[[], None]) -> None:
        if mine.told != told:
            call()
            mine.told = told

    def _reach(self, key: Key, shard: Json, holder: str) -> bool:
        """Opens a line to a holder of a shard. One that cannot be reached for long is reported."""
        assert self._lines is not None
        if self._lines.open(holder):
            self._unreached.pop((key, holder), None)
            return True
        now = time.monotonic()
        if now - self._unreached.setdefault((key, holder), now) >= _APART_S:
            del self._unreached[key, holder]
            self._send_apart(key, shard, holder)
        return False

    def _close_line(self, peer: str) -> None:
        """A server is down: shards that need it have to be led anew."""
        if self._lines is None or not self._lines.is_open(peer):
            return
        self._lines.close(peer)
        for mine in self._mine.values():
            if mine.state is not None and peer in self._others(mine.state):
                mine.state = None
                self._again = time.monotonic() + _AGAIN_S

    # What others are told.

    def _tell_node(self, wanted: Wanted) -> None:
        """Tells the node what it may say to have, if it was removed and joins again."""
        shards: dict[str, dict[str, int]] = {}
        for (uid, index), mine in self._mine.items():
            if not mine.filling:
                shards.setdefault(uid, {})[str(index)] = wanted[uid, index][1]["epoch"]
        with self._control.lock:
            if self._control.node is not None:
                self._control.node.shards = shards

    def _send_apart(self, key: Key, shard: Json, holder: str) -> None:
        self._send_leader({"k": "apart"} | _named(key, shard["epoch"], holder))

    def _is_filling(self) -> bool:
        return any(m.state and m.state["filling"] and m.told[:1] == ("lead",) for m in self._all())

    def _all(self) -> Iterable[_Served]:
        return list(self._mine.values())

    def _tell_filled(self) -> None:
        for event, uid, index, epoch, number in json.loads(self._get_server().events()):
            if event == "deposed":
                self._lead_again((uid, index))
                continue
            holder = self._lines.node(number) if self._lines is not None else None
            if holder is None:
                continue
            if event == "parted":
                self._close_line(holder)
            elif (uid, index) in self._mine:
                kind = "filled" if event == "installed" else "apart"
                message = {"k": kind} | _named((uid, index), epoch, holder)
                if event == "installed":
                    self._filled[uid, index] = message
                self._send_leader(message)

    def _lead_again(self, key: Key) -> None:
        """The server has stepped down from a shard, as a backup says that another one leads. If the
        catalog does not say so in time, it leads again."""
        if key in self._mine:
            self._mine[key].state, self._mine[key].told = None, ()
            self._again = time.monotonic() + _AGAIN_S

    def _report(self) -> None:
        """Tells the leader what was filled, again in case it has not heard it, and what was used
        since the last report."""
        for key, message in list(self._filled.items()):
            state = self._mine[key].state
            if state is not None and state["epoch"] > message["epoch"]:
                del self._filled[key]
            else:
                self._send_leader(message)
        self._tell_filled()
        uses: dict[str, dict[str, int]] = {}
        stats = self._stats(None)
        for shard in stats:
            key = (shard["uid"], shard["shard"])
            total = shard["pushes"] + shard["pulls"]
            mine = self._mine.get(key)
            if mine is not None and mine.told[:1] == ("lead",):
                new = total - self._uses.get(key, 0)
                if new > 0:
                    uses.setdefault(key[0], {})[str(key[1])] = new
            self._uses[key] = total
        if uses:
            self._send_leader({"k": "used", "uses": uses})
        self._drop_workers(stats)
        self._end_lines()

    def _send_leader(self, message: Json) -> None:
        with self._control.lock:
            node = self._control.node
            if node is not None and node.replica.leader is not None:
                self._control.send(node.replica.leader, message)

    # Clients that have ended.

    def _workers_of(self, view: View, counts: Callable[[str], bool]) -> set[int]:
        """The ranks that are workers of what is here, and whose holders are such ones."""
        uids = {uid for uid, _ in self._mine}
        return {
            client
            for record in view.values()
            if record["uid"] in uids
            for client, holder in record["workers"]
            if counts(holder)
        }

    def _drop_ended(self, server: _core.TableServer, ended: set[int]) -> None:
        """Drops the workers whose holders have ended."""
        with self._lock:
            new = ended - self._gone.keys()
            self._remember_gone(new)
        for client in sorted(new):
            server.drop(client)

    def _remember_gone(self, clients: Iterable[int]) -> None:
        """Called with the lock."""
        self._gone.update(dict.fromkeys(clients))
        while len(self._gone) > _MOST_GONE:
            del self._gone[next(iter(self._gone))]

    def _drop_workers(self, stats: list[Json]) -> None:
        """Drops workers that have ended again, if they are in a shard that is led here since: the
        primary before may not have known. And those of which nothing was heard for long leave:
        ranks whose holders are away, and guests without a line to this server, since each guest
        that lives has lines to all primaries."""
        now = time.monotonic()
        workers = {
            int(client)
            for shard in stats
            if shard["role"] == "leads"
            for client in shard["workers"]
        }
        with self._lock:
            lined = {
                client
                for node, clients in self._clients.items()
                if node not in self._silent
                for client in clients
            }
            gone = workers & self._gone.keys()
        for client in sorted(gone):
            self._get_server().drop(client)
        silent = {client for client in workers - lined if is_guest(client)} | workers & self._away
        self._unheard = {c: self._unheard.get(c, now) for c in silent}
        for client, since in self._unheard.items():
            if now - since >= _SILENT_S:
                self._get_server().leave(client)

    def _end_lines(self) -> None:
        """Ends the lines of nodes of which nothing was heard for long: they take memory. Whoever
        comes back asks for another one."""
        now, server = time.monotonic(), self._get_server()
        with self._lock:
            for node in [n for n, since in self._silent.items() if now - since >= _SILENT_S]:
                del self._silent[node]
                for client in sorted(self._clients.pop(node, ())):
                    server.leave(client)

    # The answerer's thread.

    def _answer(self, source: str, message: Json, make: Callable[[], Json]) -> None:
        def answer() -> None:
            try:
                body: Json | Error = make()
            except Error as error:
                body = error
            self._control.send(source, reply(message["r"], body))

        if not self._closed:
            self._answerer.submit(answer)

    def _accept(self, source: str, message: Json) -> Json:
        client = message["client"]
        server = self._get_server()
        with self._lock:  # or _end_lines() could take the new line for that before
            answer = server.accept(client, agents.decode(message["offer"]))
            self._clients.setdefault(source, set()).add(client)
        return {"answer": agents.encode(answer)}

    def _hear(self, peer: str) -> None:
        with self._lock:
            self._silent.pop(peer, None)

    def _save(self, source: str, message: Json) -> Json:
        if message["q"] == "saved":
            self._saved.pop(message["token"], None)
            return {}
        now = time.monotonic()
        for token in [token for token, kept in self._saved.items() if now - kept.since > _KEPT_S]:
            del self._saved[token]
        saved: tuple[Any, str] = self._get_server().save(message["uid"], message["shard"])
        allocation, said = saved
        array = numpy.frombuffer(allocation, numpy.uint8)
        region = self._agent.register(array) if array.size else None
        self._tokens += 1
        self._saved[self._tokens] = _Saved(region, source, now)
        info = {"host": self._agent.host, "leaf": self._agent.leaf}
        place = agents.encode(region.handle()) if region else ""  # there may be no rows
        answer = {"region": place, "said": said, "token": self._tokens}
        return answer | {"holder": self._control.me, "info": info}

    def _lose_clients_of(self, peer: str, ended: bool) -> None:
        self._saved = {t: kept for t, kept in self._saved.items() if kept.client != peer}
        with self._lock:
            if not ended:
                self._silent.setdefault(peer, time.monotonic())
                return
            self._silent.pop(peer, None)
            clients = self._clients.pop(peer, set())
            self._remember_gone(client for client in clients if client >= 0)
        for client in sorted(clients):
            self._get_server().drop(client)

    def _stats(self, uid: str | None) -> list[Json]:
        shards: list[Json] = json.loads(self._get_server().stats())["shards"]
        return [shard for shard in shards if uid in (None, shard["uid"])]


def shards_of(view: View, me: str) -> Wanted:
    """The shards that a holder has, is being sent, or may still have, with the record of the table
    and the state."""
    return {
        (record["uid"], index): (record, shard)
        for record in view.values()
        for index, shard in enumerate(record["shards"])
        if me in shard["holders"] or shard["filling"] == me or me in shard["away"]
    }


def _named(key: Key, epoch: int, holder: str) -> Json:
    return {"uid": key[0], "shard": key[1], "epoch": epoch, "holder": holder}
