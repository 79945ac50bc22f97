"""Processes with a store and tables (jobs/tables.py), and what tests ask of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy
import signals
from support.hosts import Host

JOB = Path(__file__).parent / "jobs" / "tables.py"
LIMIT_S = 60.0  # for any answer
IDS = list(range(0, 70, 7))


class Failed(Exception):
    """What a member answers if what it was told raises. ``kind`` is the class of the error."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


class Member:
    """A process with a store. ``address`` is where guests find it, once it is there. ``knobs`` are
    variables RINGCOLL_*; it has no others."""

    def __init__(self, *words: object, host: Host | None = None, **knobs: str) -> None:
        env = {k: v for k, v in os.environ.items() if not k.startswith("RINGCOLL_")}
        env |= {f"RINGCOLL_{name}": value for name, value in knobs.items()}
        command = [sys.executable, "-P", str(JOB), *map(str, words)]
        if host is not None:
            command = host.command(command, "/")
        self.process = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/"
        )
        self.address = ""

    def hear(self) -> Any:
        assert self.process.stdout
        killer = threading.Timer(LIMIT_S, self.process.kill)
        killer.start()
        try:
            line = self.process.stdout.readline()
        finally:
            killer.cancel()
        if not line:
            raise Failed("Ended", f"the process has ended with {self.process.wait()}")
        return json.loads(line)

    def arrive(self) -> Member:
        """Waits until its store is open."""
        self.address = self.hear()
        return self

    def say(self, word: str, **arguments: Any) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps([word, arguments]) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        answer = self.hear()
        if "error" in answer:
            raise Failed(answer["error"], answer["text"])
        return answer["value"]

    def ask(self, word: str, **arguments: Any) -> Any:
        self.say(word, **arguments)
        return self.answer()

    def run(self, text: str) -> Any:
        return self.ask("run", text=text)

    def signal(self, number: int) -> None:
        signals.send(self.process, number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
        with self.process:
            self.process.kill()


def all_say(members: list[Member], word: str, **arguments: Any) -> list[Any]:
    """The same to all at once, as what they do together needs it."""
    for member in members:
        member.say(word, **arguments)
    return [member.answer() for member in members]


def wait_until(condition: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to be in time"
        time.sleep(0.1)


def is_doubled(member: Member) -> bool:
    """Whether all shards have two holders, and none is being filled."""
    text = (
        "tables = me.store._control.node.replica.catalog.tables.records.values()\n"
        "result = [s for t in tables for s in t['shards']]"
    )
    return all(len(s["holders"]) == 2 and not s["filling"] for s in member.run(text))


class Adding:
    """What one member pushes to its column of one table."""

    def __init__(
        self, member: Member, table: str, column: int, folder: Path, is_sparse: bool
    ) -> None:
        self.column, self.table, self.is_sparse = column, table, is_sparse
        self._file = folder / f"{table}-{column}"
        ids = IDS if is_sparse else None
        member.ask("begin", name=table, column=column, ids=ids, notes=str(self._file))

    @property
    def begun(self) -> int:
        return int(numpy.fromfile(self._file, numpy.int64)[0])

    @property
    def acknowledged(self) -> int:
        return int(numpy.fromfile(self._file, numpy.int64)[1])

    def check(self, rows: Any) -> None:
        """Each row has each push once that was acknowledged, and may have the one for whose
        answer its client has not lived."""
        found = numpy.asarray(rows)[..., self.column]
        least, most = self.acknowledged, self.begun
        text = f"{self.table}, column {self.column}: {least} to {most} pushes, and {found}"
        assert (found >= least).all(), text
        assert (found <= most).all(), text


def await_progress(pushed: Sequence[Adding], count: int = 1) -> None:
    """Waits until so many more pushes of each were acknowledged."""
    before = [each.acknowledged for each in pushed]
    wait_until(
        lambda: all(e.acknowledged >= b + count for e, b in zip(pushed, before, strict=True))
    )
