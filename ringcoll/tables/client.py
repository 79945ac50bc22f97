"""The client's side of all tables of a store in one process: knows where shards are served, and
keeps lines to their servers.

Where shards are is learnt from the leader: by a request when a table is opened, and by messages
when its shards change. It is asked again if a server says that it does not have a shard, if a
server is down, and when another holder leads. Calls wait in the library meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ringcoll import _core
from ringcoll.errors import Aborted, Error, Gone, InvalidArgument
from ringcoll.log import log
from ringcoll.tables import native
from ringcoll.tables.lines import Lines
from ringcoll.tables.native import LOST, UNKNOWN
from ringcoll.weights.catalog_tables import Json, is_lost
from ringcoll.weights.holder import Worker

if TYPE_CHECKING:
    from ringcoll.weights.control import Control

_ASK_S = 5.0
_AGAIN_S = 0.1  # before what failed is tried again


class _Open:
    """A table that the program has opened. ``is_dropped`` never becomes false again."""

    def __init__(self, name: str, record: Json) -> None:
        self.name, self.uid = name, record["uid"]
        self.shards: list[Json] = list(record["shards"])
        self.is_dropped = False

    def learn(self, record: Json) -> None:
        """Takes over what is newer."""
        if record["uid"] != self.uid or record.get("dropped"):
            self.is_dropped = True
            return
        for index, (known, told) in enumerate(zip(self.shards, record["shards"], strict=True)):
            if told["epoch"] >= known["epoch"]:
                self.shards[index] = told


class Client:
    """The tables of one process. ``told``, ``down`` and ``tick`` may be called with the store's
    lock: they do not wait."""

    def __init__(self, control: Control, agent: Any, number: int) -> None:
        self.number = number
        self.native = native.make_client(agent, number)
        self._session = control.session
        self._lines = Lines(self.native, control.session, number)
        self._worker = Worker("ringcoll-tables-client")
        self._lock = threading.Lock()
        self._open: dict[str, _Open] = {}  # by uid
        self._stale: dict[str, float] = {}  # uid -> when it is looked at again
        self._changes = control.session.changes
        self._looking = False
        self._closed = False

    def open(self, name: str, record: Json) -> None:
        """Calls on a table may start from now on. Opening again does nothing."""
        uid = record["uid"]
        with self._lock:
            if uid in self._open:
                return
            with self._unless_closed():
                self.native.open(uid, json.dumps(record["spec"]), len(record["shards"]))
            self._open[uid] = _Open(name, record)
        self._submit(lambda: self._route(uid))

    def start(self, *arguments: Any) -> _core.Request:
        """Starts a call. The arguments are those of ``TableClient.start`` (ringcoll/_core.pyi):
        ``what`` is "push", "pull", "push_pull", "assign", "tick", "join" or "set_rule". ``values``
        and ``out`` are contiguous bytes, and ``dtype`` is the type of the values. "set_rule" has
        the rule's JSON as values. "join" writes the clock at which the worker is then to ``out``,
        an int64. ``clock`` is -1 for a client that is no worker."""
        with self._unless_closed():
            return self.native.start(*arguments)

    @contextlib.contextmanager
    def _unless_closed(self) -> Iterator[None]:
        """Raises Aborted for what fails because close() has been called meanwhile."""
        try:
            yield
        except InvalidArgument:
            self.check()
            raise

    def is_dropped(self, uid: str) -> bool:
        """Whether a table was dropped, as far as this client has heard."""
        return self._open[uid].is_dropped

    def servers(self, uid: str) -> list[str]:
        """The nodes that serve a table."""
        with self._lock:
            shards = list(self._open[uid].shards)
        return list(dict.fromkeys(holder for shard in shards for holder in shard["holders"]))

    def lost(self, uid: str) -> int:
        """How many shards of a table nobody has any more."""
        with self._lock:
            return sum(map(is_lost, self._open[uid].shards))

    def learn(self, record: Json) -> None:
        """The leader has told where the shards of a table are."""
        uid = record["uid"]
        with self._lock:
            if uid in self._open:
                self._open[uid].learn(record)
                self._submit(lambda: self._route(uid))

    def down(self, peer: str) -> None:
        """A server does not answer, or has ended."""
        self._submit(lambda: self._lose(peer))

    def tick(self) -> None:
        """To be called several times a second."""
        if not self._looking and self._open:
            self._looking = True
            self._submit(self._look)

    def close(self) -> None:
        """Ends all calls with Aborted."""
        self._closed = True
        self.native.close()
        self._worker.stop(5.0)

    def check(self) -> None:
        """Raises Aborted after close()."""
        if self._closed:
            raise Aborted("the store is closed")

    def _submit(self, function: Callable[[], None]) -> None:
        """Has the worker's thread do something. What close() interrupts is no error."""

        def run() -> None:
            try:
                if not self._closed:
                    function()
            except Error:
                if not self._closed:
                    raise

        if not self._closed:
            self._worker.submit(run)

    # All of these run in the worker's thread.

    def _route(self, uid: str) -> None:
        """Tells the library where shards are. Those whose servers have a line already do not wait
        for the lines to the others."""
        with self._lock:
            table = self._open[uid]
            shards = list(table.shards)
        if table.is_dropped:
            self.native.route(uid, [LOST] * len(shards))
            return
        self.native.route(uid, [self._server_of(shard) for shard in shards])
        lacking = {holder for shard in shards for holder in shard["holders"][:1]}
        lacking = {holder for holder in lacking if not self._lines.is_open(holder)}
        if not lacking:
            return
        opened = [self._lines.open(holder) for holder in sorted(lacking)]
        if any(opened):
            self.native.route(uid, [self._server_of(shard) for shard in shards])
        if not all(opened):
            self._stale.setdefault(uid, time.monotonic() + _AGAIN_S)

    def _server_of(self, shard: Json) -> int:
        if is_lost(shard):
            return LOST
        primary = next(iter(shard["holders"]), None)
        if primary is None or not self._lines.is_open(primary):
            return UNKNOWN
        return self._lines.number(primary)

    def _lose(self, peer: str) -> None:
        if not self._lines.is_open(peer):
            return
        self._lines.close(peer)
        with self._lock:
            tables = list(self._open.items())
        for uid, table in tables:
            if any(shard["holders"][:1] == [peer] for shard in table.shards):
                self._route(uid)

    def _look(self) -> None:
        """Asks the leader about tables of which something is wrong."""
        try:
            now = time.monotonic()
            astray = json.loads(self.native.astray())
            for number in astray["parted"]:
                self._lose(self._lines.node(number) or "")
            for uid in astray["tables"]:
                self._stale.setdefault(uid, now)
            if self._session.changes != self._changes:
                self._changes = self._session.changes
                self._stale |= dict.fromkeys(self._open, now)  # the new leader has to know us
            for uid in [uid for uid, at in self._stale.items() if at <= now]:
                del self._stale[uid]
                self._ask(uid)
        finally:
            self._looking = False

    def _ask(self, uid: str) -> None:
        with self._lock:
            table = self._open.get(uid)
        if table is None or table.is_dropped:
            return
        request = {"q": "table", "name": table.name, "spec": None, "shards": None}
        try:
            record = self._session.request(request, _ASK_S)["table"]
        except Gone:
            record = {"uid": uid, "dropped": True}
        except Aborted:
            return
        except Error as error:
            log.debug("tables: the leader does not say where %s is: %s", table.name, error)
            self._stale[uid] = time.monotonic() + _AGAIN_S
            return
        with self._lock:
            table.learn(record)
        self._route(uid)
