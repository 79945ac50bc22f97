"""How the processes of MXNet's launchers meet: by a scheduler at an address that all of them know.

Each worker and server connects to it, and keeps the connection until it ends. They exchange lines
of JSON:

1. A process says its role, and a worker also where a store for :func:`ringcoll.init` could be.
2. Once all workers are there, each is told its rank and where the store is.
3. Worker 0 says the address of the store of tables. Each server is told, joins it, and says so.
4. The workers are told that all servers are there.

When the connections of all workers are closed, the scheduler ends, and with it the servers. The key
of the store passes through the scheduler, so its network has to be one that the job may trust.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ringcoll.errors import InvalidArgument, PeerLost, Timeout

Line = dict[str, Any]

_PAUSE_S = 0.1
_LINE_BYTES = 65536  # the longest line; a stranger could say much
_HELLO_S = 10.0  # a connection that says nothing is none of the job's
_LIMIT_S = 300.0  # the default of RINGCOLL_TIMEOUT_S


@dataclass(frozen=True)
class Plan:
    """What MXNet's launchers set: who there is, and where the scheduler is."""

    role: str
    host: str
    port: int
    workers: int
    servers: int
    limit_s: float

    @classmethod
    def of(cls, environ: Mapping[str, str] = os.environ, role: str | None = None) -> Plan:
        """The plan of this process. Raises InvalidArgument, which names the variable."""
        role = role or _text(environ, "DMLC_ROLE")
        if role not in ("worker", "server", "scheduler"):
            raise InvalidArgument(f"DMLC_ROLE={role}: it is worker, server or scheduler")
        return cls(
            role,
            _text(environ, "DMLC_PS_ROOT_URI"),
            _number(environ, "DMLC_PS_ROOT_PORT", 1),
            _number(environ, "DMLC_NUM_WORKER", 1),
            _number(environ, "DMLC_NUM_SERVER", 0),
            float(environ.get("RINGCOLL_TIMEOUT_S", _LIMIT_S)),
        )


def _text(environ: Mapping[str, str], name: str) -> str:
    if not environ.get(name):
        raise InvalidArgument(f"{name} is not set: MXNet's launchers set it for each process")
    return environ[name]


def _number(environ: Mapping[str, str], name: str, least: int) -> int:
    text = _text(environ, name)
    if not text.isdecimal() or int(text) < least:
        raise InvalidArgument(f"{name}={text}: it is a number of at least {least}")
    return int(text)


class Lines:
    """A connection that carries lines of JSON."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._file = connection.makefile("rb")

    @property
    def own_host(self) -> str:
        """The address of this end."""
        return str(self._socket.getsockname()[0])

    def send(self, line: Line) -> None:
        """Raises PeerLost if the other end has ended."""
        try:
            self._socket.sendall(json.dumps(line).encode() + b"\n")
        except OSError as error:
            raise PeerLost(f"a process of the job has ended: {error}") from error

    def receive(self, timeout: float | None) -> Line | None:
        """The next line; None if the other end has closed. Raises Timeout."""
        self._socket.settimeout(timeout)
        try:
            text = self._file.readline(_LINE_BYTES)
        except TimeoutError as error:
            raise Timeout(f"a process of the job has said nothing for {timeout:g} s") from error
        except OSError:
            return None
        line: Line | None = json.loads(text) if text.endswith(b"\n") else None
        return line

    def close(self) -> None:
        """Closes it. The other end is told."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._file.close()
        self._socket.close()


def connect(plan: Plan) -> Lines:
    """Connects to the scheduler, which may come later. Raises Timeout."""
    end = time.monotonic() + plan.limit_s
    while True:
        try:
            found = socket.create_connection((plan.host, plan.port), timeout=plan.limit_s)
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return Lines(found)
        except OSError as error:
            if time.monotonic() > end:
                raise Timeout(
                    f"the scheduler does not answer at {plan.host}:{plan.port}, where "
                    f"DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT say it is: {error}"
                ) from error
            time.sleep(_PAUSE_S)


class Scheduler:
    """The process of the role "scheduler"."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._listener = socket.create_server(("", plan.port), backlog=1024)
        self._peers: dict[str, list[Lines]] = {"worker": [], "server": []}
        self._stores: list[str] = []

    def run(self) -> None:
        """Has all meet, and returns when all workers have ended. Raises Timeout and PeerLost if not
        all come; the others then see that the scheduler has ended."""
        try:
            self._gather()
            self._introduce()
            for worker in self._peers["worker"]:
                worker.receive(None)  # nothing: it ends
        finally:
            for peer in self._peers["worker"] + self._peers["server"]:
                peer.close()
            self._listener.close()

    def _gather(self) -> None:
        wanted = {"worker": self._plan.workers, "server": self._plan.servers}
        end = time.monotonic() + self._plan.limit_s
        while any(len(self._peers[role]) < count for role, count in wanted.items()):
            self._listener.settimeout(max(0.001, end - time.monotonic()))
            try:
                connection, _ = self._listener.accept()
            except TimeoutError as error:
                there = ", ".join(f"{len(p)} of {wanted[r]} {r}s" for r, p in self._peers.items())
                raise Timeout(f"after {self._plan.limit_s:g} s there are {there}") from error
            self._greet(Lines(connection), wanted)

    def _greet(self, peer: Lines, wanted: dict[str, int]) -> None:
        try:
            hello = peer.receive(_HELLO_S) or {}
            role = hello["role"]
            peers = self._peers[role]
        except (Timeout, ValueError, TypeError, KeyError):
            peer.close()  # a stranger
            return
        if len(peers) == wanted[role]:
            peer.close()  # one too many
            return
        peers.append(peer)
        if role == "worker":
            self._stores.append(str(hello["store"]))

    def _introduce(self) -> None:
        workers, servers = self._peers["worker"], self._peers["server"]
        key = secrets.token_hex(16)
        for rank, worker in enumerate(workers):
            worker.send({"rank": rank, "store": self._stores[0], "key": key})
        place = self._answer(workers[0])
        for server in servers:
            server.send({"address": place["address"], "key": key})
        for server in servers:
            self._answer(server)
        for worker in workers:
            worker.send({"servers": len(servers)})

    def _answer(self, peer: Lines) -> Line:
        line = peer.receive(self._plan.limit_s)
        if line is None:
            raise PeerLost("a process of the job has ended while all of them met")
        return line
