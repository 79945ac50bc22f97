"""Agents in processes of their own, which can be stopped and killed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import signals
from support.hosts import Host
from table_members import Member

JOBS = Path(__file__).parent / "jobs"


class Peer:
    """A process that runs ``jobs/<name>.py`` and answers one line with one line."""

    def __init__(self, name: str, *words: object, host: str | None = None) -> None:
        env = {k: v for k, v in os.environ.items() if not k.startswith("RINGCOLL_")}
        if host is not None:
            env["RINGCOLL_HOSTID"] = host  # other hosts do not map one another's memory
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(JOBS / f"{name}.py"), *map(str, words)],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def hear(self, seconds: float = 60) -> str:
        """The next line that the process says."""
        killer = threading.Timer(seconds, self.process.kill)
        killer.start()
        try:
            assert self.process.stdout
            line = self.process.stdout.readline()
        finally:
            killer.cancel()
        if not line:
            raise AssertionError(f"the peer has ended with {self.process.wait()}")
        return line.strip()

    def ask(self, *words: object) -> str:
        assert self.process.stdin
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        return self.hear()

    def signal(self, number: int) -> None:
        signals.send(self.process, number)

    def end(self) -> None:
        with self.process:
            self.process.kill()


@pytest.fixture
def start() -> Iterator[Callable[..., Peer]]:
    """``start("owner", ..., host="b")``: a peer, which is killed at the test's end."""
    peers: list[Peer] = []

    def run(name: str, *words: Any, host: str | None = None) -> Peer:
        peers.append(Peer(name, *words, host=host))
        return peers[-1]

    yield run
    for peer in peers:
        peer.end()


@pytest.fixture
def member() -> Iterator[Callable[..., Member]]:
    """``member("join", address)``: a process with a store, once it is open; killed at the end."""
    members: list[Member] = []

    def start(*words: object, **options: Any) -> Member:
        members.append(Member(*words, **options))
        return members[-1].arrive()

    yield start
    for each in members:
        each.close()


@pytest.fixture
def members(tmp_path: Path) -> Iterator[Callable[..., list[Member]]]:
    """``members(3, replicas=1)``: the processes of so many ranks. ``hosts`` says where each is."""
    started: list[Member] = []

    def start(count: int, replicas: int = 0, hosts: Sequence[Host] = ()) -> list[Member]:
        for rank in range(count):
            host = hosts[rank] if hosts else None
            started.append(Member("rank", rank, count, tmp_path, replicas, host=host))
        return [each.arrive() for each in started[-count:]]

    yield start
    for each in started:
        each.close()
