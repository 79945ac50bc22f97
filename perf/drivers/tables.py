"""What the drivers of parameter tables share: servers have a table, and workers push and pull.

The first rank after MOST_BYTES on the command line is the number of servers, which are the first
ranks; the others are workers. Commands of the harness, which come to all ranks:

    use WAY                  push/dense, pull/sparse and the like
    prepare BYTES            workers make a table for so many bytes, and push to it once
    run BYTES BATCHES CALLS  workers push or pull, once more than that; the times of the others are
                             answered, a server answers zeros
    verify BYTES             workers compare what the table has with what they have all pushed

A dense table has as many bytes. Of a sparse one so many bytes of rows are pushed and pulled, by ids
that ascend.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple, Protocol

import numpy as np
from bench import Harness, times_line
from start import Start

WIDTH = 64  # of a row, in floats
MOST_ROWS = 1_000_000
_SPREAD = 4  # there are so many times the rows that are pushed, up to MOST_ROWS
_BIGGEST = 7  # value: sums stay exact in float32 for millions of pushes
PUSH, PULL, PUSH_PULL = "push", "pull", "push_pull"


class Case(NamedTuple):
    """A table, and what is pushed to it. Without `ids` it is dense, and `rows` is its length."""

    name: str
    rows: int
    ids: Any
    values: Any
    out: Any

    @classmethod
    def of(cls, kind: str, size: int) -> Case:
        shape: tuple[int, ...] = (size // 4,)
        rows, ids = size // 4, None
        if kind == "sparse":
            count = size // 4 // WIDTH
            rows, shape = max(count, min(MOST_ROWS, _SPREAD * count)), (count, WIDTH)
            ids = np.sort(np.random.default_rng(count).permutation(rows)[:count]).astype(np.int64)
        values = np.arange(size // 4, dtype=np.int64) % _BIGGEST + 1
        values = values.astype(np.float32).reshape(shape)
        return cls(f"{kind}-{size}", rows, ids, values, np.zeros_like(values))

    def of_server(self, server: int, servers: int) -> tuple[int, Any, Any]:
        """Its part of the table, where a library leaves that to its user: the rows that it has, the
        ids there, and which of the values."""
        if self.ids is None:
            begin, end = (self.rows * n // servers for n in (server, server + 1))
            return end - begin, None, slice(begin, end)
        mine = self.ids % servers == server
        return -(-self.rows // servers), self.ids[mine] // servers, mine


class Server(Protocol):
    def close(self) -> None: ...


class Worker(Protocol):
    def make(self, case: Case) -> None:
        """Makes the table of zeros unless it is there. Calls that follow are on it."""
        ...

    def push(self) -> None: ...
    def pull(self) -> None: ...
    def push_pull(self) -> None: ...
    def pulled(self) -> Any:
        """What was pulled last, as NumPy array."""
        ...

    def expected(self, pushes: int) -> Any:
        """What the table has, where the case has ids, after so many pushes of each worker."""
        ...

    def close(self) -> None: ...


class WorkerRank:
    """Answers the commands."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._what, self._kind = PUSH, "dense"
        self._pushes: dict[str, int] = {}
        self._case = Case.of("dense", 4)

    def use(self, words: list[str]) -> str:
        self._what, _, self._kind = words[0].partition("/")
        return "using"

    def prepare(self, words: list[str]) -> str:
        size = int(words[0])
        if self._case.name != f"{self._kind}-{size}":
            self._case = Case.of(self._kind, size)
        self._worker.make(self._case)
        if self._case.name not in self._pushes:
            self._worker.push()
            self._pushes[self._case.name] = 1
        return "prepared"

    def run(self, words: list[str]) -> str:
        batches, calls = map(int, words[1:])
        call, times = getattr(self._worker, self._what), []
        call()  # not counted: the processes may have been stopped, and have to find one another
        for _ in range(batches):
            begin = time.perf_counter()
            for _ in range(calls):
                call()
            times.append(time.perf_counter() - begin)
        if self._what != PULL:
            self._pushes[self._case.name] += 1 + batches * calls
        return times_line(times)

    def verify(self, words: list[str]) -> str:
        self._worker.pull()
        wanted = self._worker.expected(self._pushes[self._case.name])
        wrong = np.count_nonzero(self._worker.pulled().reshape(wanted.shape) != wanted)
        if wrong:
            raise ValueError(f"{self._what}: {wrong} of {wanted.size} values are wrong")
        return "verified"


class ServerRank:
    """Has nothing to answer but that it is there."""

    def use(self, words: list[str]) -> str:
        return "using"

    def prepare(self, words: list[str]) -> str:
        return "prepared"

    def run(self, words: list[str]) -> str:
        return times_line([0.0] * int(words[1]))

    def verify(self, words: list[str]) -> str:
        return "verified"


def begin() -> Start:
    """What the rank was started with."""
    start = Start()
    start.owners = int(start.words.pop(0))
    return start


def answer(start: Start, rank: WorkerRank | ServerRank) -> None:
    """Until the harness says quit."""
    commands = {"use": rank.use, "prepare": rank.prepare, "run": rank.run, "verify": rank.verify}
    Harness(start.socket, start.rank).serve(commands)


def serve(start: Start, role: Any) -> None:
    """The same for a role that needs no thread of its own: a Server or a Worker."""
    try:
        answer(start, WorkerRank(role) if start.is_user else ServerRank())
    finally:
        role.close()
