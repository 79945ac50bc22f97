"""The parts of tables that are written in C++, as this package uses them.

A *server* has the shards that this process serves. A *client* sends this process's pushes and pulls
to servers. Both reach servers by *lines*, which one end offers and the other accepts. Servers are
numbered by whoever has lines to them, from 1 on. Clients have numbers that no other one ever has
(:mod:`ringcoll.tables.numbers`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ringcoll import _core
from ringcoll.tables import python_rules

LOST = -1  # in a route: nobody has the shard, and its calls raise Gone
UNKNOWN = 0  # in a route: calls wait


class Lineable(Protocol):
    """Whatever has lines to servers."""

    def offer(self, server: int) -> bytes: ...
    def complete(self, server: int, answer: bytes) -> None: ...
    def part(self, server: int) -> None: ...


class Request(Protocol):
    """A call that is under way."""

    def wait(self, timeout: float = -1.0) -> bool:
        """False if it has not ended after ``timeout``. Raises the error with which it has ended."""
        ...

    def done(self) -> bool: ...


class Server(Lineable, Protocol):
    """The shards of this process, and the thread that serves them. Any thread may use it."""

    def accept(self, client: int, offer: bytes) -> bytes: ...
    def drop(self, client: int) -> None: ...
    def leave(self, client: int) -> None: ...
    def host(
        self, uid: str, table: str, shard: int, shards: int, workers: Sequence[int]
    ) -> None: ...
    def host_saved(
        self,
        uid: str,
        table: str,
        shard: int,
        shards: int,
        workers: Sequence[int],
        saved: Any,
        json: str,
    ) -> None: ...
    def save(self, uid: str, shard: int) -> tuple[Any, str]:
        """Memory with the rows of a shard, and the JSON of ringcoll_table_server_save()."""
        ...

    def unhost(self, uid: str, shard: int) -> None: ...
    def lead(self, uid: str, shard: int, epoch: int, backups: Sequence[int]) -> None: ...
    def follow(self, uid: str, shard: int, epoch: int) -> None: ...
    def events(self) -> str:
        """The JSON of ringcoll_table_server_events()."""
        ...

    def stats(self) -> str:
        """The JSON of ringcoll_table_server_stats()."""
        ...

    def close(self) -> None: ...


class Client(Lineable, Protocol):
    """The calls of this process on tables. Any thread may use it.

    ``what`` is "push", "pull", "push_pull", "assign", "tick", "join" or "set_rule". ``values`` and
    ``out`` of a call are contiguous bytes; ``dtype`` is the type of the values.
    "set_rule" has the rule's JSON as values. "join" writes the clock at which the worker is then to
    ``out``, an int64. ``clock`` is -1 for a client that is no worker.
    """

    def open(self, uid: str, table: str, shards: int) -> None: ...
    def route(self, uid: str, servers: Sequence[int]) -> None: ...
    def astray(self) -> str:
        """The JSON of ringcoll_table_client_astray()."""
        ...

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
    ) -> Request: ...
    def close(self) -> None: ...


def native_of(agent: Any) -> _core.Agent:
    """The library's agent of a ringcoll.remote.Agent."""
    native: _core.Agent = agent.native
    return native


def make_server(agent: Any) -> Server:
    """A server on the memory and networks of an agent."""
    python_rules.install()
    return _core.TableServer(native_of(agent))


def make_client(agent: Any, number: int) -> Client:
    """A client with this number."""
    return _core.TableClient(native_of(agent), number)
