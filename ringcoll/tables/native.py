"""The parts of tables that are written in C++, as this package uses them.

A *server* has the shards that this process serves. A *client* sends this process's pushes and pulls
to servers. Both reach servers by *lines*, which one end offers and the other accepts. Servers are
numbered by whoever has lines to them, from 1 on. Clients have numbers that no other one ever has
(:mod:`ringcoll.tables.numbers`).
"""

from __future__ import annotations

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


def native_of(agent: Any) -> _core.Agent:
    """The library's agent of a ringcoll.remote.Agent."""
    native: _core.Agent = agent.native
    return native


def make_server(agent: Any) -> _core.TableServer:
    """A server on the memory and networks of an agent."""
    python_rules.install()
    return _core.TableServer(native_of(agent))


def make_client(agent: Any, number: int) -> _core.TableClient:
    """A client with this number."""
    return _core.TableClient(native_of(agent), number)
