"""Ranks as processes, for the tests of all folders.

``run_ranks`` forks the ranks of a job from the test, so that nothing is imported again. The test's
own process must not make a communicator: its threads would not survive the fork.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from support import hosts
from support.hosts import Cluster, Host, Network

# Longest life of a job by default, in seconds; and the deadline of its waits.
LIMIT = 60
TIMEOUT = "20"

_context = multiprocessing.get_context("fork")


@dataclass
class Outcome:
    """How one rank ended: with a value, with an exception, or killed."""

    value: Any = None
    error: BaseException | None = None
    exit_code: int | None = None
    output: str = ""


class Job:
    """Running ranks. ``pids`` are in rank order. ``hosts``: where each is, if not on this one."""

    def __init__(
        self,
        size: int,
        body: Callable[..., Any],
        folder: Path,
        env: dict[str, str],
        connect: bool,
        hosts: Sequence[Host] = (),
    ) -> None:
        assert len(hosts) in (0, size), f"{len(hosts)} places for {size} ranks"
        self._folder = folder
        self._pipes: list[Connection] = []
        self._processes = []
        self._store = folder / "store"
        self._store.mkdir()
        for rank in range(size):
            host = hosts[rank] if hosts else None
            ours, theirs = _context.Pipe(duplex=False)
            arguments = (
                rank,
                size,
                body,
                f"file://{self._store}",
                folder / f"output.{rank}",
                env,
                connect,
                theirs,
                host,
            )
            process = _context.Process(target=_be_rank, args=arguments)
            with host.birthplace() if host else nullcontext():
                process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    @property
    def folder(self) -> Path:
        """The current folder of all ranks."""
        return self._folder

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def kill(self, rank: int, number: int = signal.SIGKILL) -> None:
        os.kill(self.pids[rank], number)

    def wait_for(self, name: str, seconds: float = 30) -> None:
        """Until some rank has made the file ``mark.NAME`` in its current folder, which all
        share."""
        end = time.monotonic() + seconds
        while not (self._folder / f"mark.{name}").exists():
            assert time.monotonic() < end, f"no rank came to {name}:\n{self._outputs()}"
            time.sleep(0.005)

    def join(self, limit: float = LIMIT) -> list[Outcome]:
        """The outcomes; fails the test, with all output, if a rank lives longer than ``limit``
        seconds."""
        end = time.monotonic() + limit
        outcomes = [self._receive(rank, end) for rank in range(len(self._pipes))]
        late = [rank for rank, process in enumerate(self._processes) if not _joined(process, end)]
        self.close()
        for rank, outcome in enumerate(outcomes):
            outcome.exit_code = self._processes[rank].exitcode
            outcome.output = self.output(rank)
        assert not late, f"ranks {late} had not ended after {limit} s:\n{self._outputs()}"
        return outcomes

    def output(self, rank: int) -> str:
        return (self._folder / f"output.{rank}").read_text(errors="replace")

    def close(self) -> None:
        for process in self._processes:
            if process.is_alive():
                process.kill()  # SIGKILL also ends one that is stopped
            process.join()

    def _receive(self, rank: int, end: float) -> Outcome:
        try:
            if self._pipes[rank].poll(max(0.0, end - time.monotonic())):
                return pickle.loads(self._pipes[rank].recv_bytes())
        except EOFError:  # it was killed
            pass
        return Outcome()

    def _outputs(self) -> str:
        return "\n".join(
            f"--- rank {rank}\n{self.output(rank)}" for rank in range(len(self._pipes))
        )


def _joined(process: Any, end: float) -> bool:
    process.join(max(0.0, end - time.monotonic()))
    return not process.is_alive()


def _be_rank(
    rank: int,
    size: int,
    body: Callable[..., Any],
    store: str,
    output: Path,
    env: dict[str, str],
    connect: bool,
    pipe: Connection,
    host: Host | None,
) -> None:
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(file, stream)
    sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
    os.environ.update({"RINGCOLL_TIMEOUT_S": TIMEOUT, "TMPDIR": str(output.parent)})
    if host:
        host.enter()
    else:
        os.environ["RINGCOLL_INTERFACE"] = "lo"
    os.environ.update(env)
    tempfile.tempdir = None
    os.chdir(output.parent)
    import ringcoll

    outcome = Outcome()
    try:
        outcome.value = (
            body(ringcoll.init(rank, size, store)) if connect else body(rank, size, store)
        )
    except BaseException as error:
        traceback.print_exc()
        # Its own class if that can be sent: pytest's, for one, cannot.
        outcome.error = error if isinstance(error, ringcoll.Error) else RuntimeError(repr(error))
    finally:
        ringcoll.shutdown()
    pipe.send_bytes(pickle.dumps(outcome))


@pytest.fixture
def start_ranks(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """``start_ranks(size, body, env={}, connect=True, hosts=[])``: a Job. ``body`` gets the world,
    or, without ``connect``, rank, size and store. ``hosts`` has an emulated host for each rank.
    All processes are gone at the test's end."""
    jobs: list[Job] = []

    def start(
        size: int,
        body: Callable[..., Any],
        env: dict[str, str] | None = None,
        connect: bool = True,
        hosts: Sequence[Host] = (),
    ) -> Job:
        folder = tmp_path / f"job{len(jobs)}"
        folder.mkdir()
        jobs.append(Job(size, body, folder, env or {}, connect, hosts))
        return jobs[-1]

    yield start
    for job in jobs:
        job.close()


@pytest.fixture
def run_ranks(start_ranks: Callable[..., Job]) -> Callable[..., list[Any]]:
    """``run_ranks(size, body, limit=60, **as start_ranks)``: what the body returned on each
    rank. Fails the test with the output of all ranks if one raised or did not end."""

    def run(size: int, body: Callable[..., Any], limit: float = LIMIT, **options: Any) -> list[Any]:
        outcomes = start_ranks(size, body, **options).join(limit)
        bad = [
            rank for rank, outcome in enumerate(outcomes) if outcome.error or outcome.exit_code != 0
        ]
        text = "\n".join(
            f"--- rank {rank} ({out.exit_code})\n{out.output}" for rank, out in enumerate(outcomes)
        )
        assert not bad, f"ranks {bad} failed:\n{text}"
        return [outcome.value for outcome in outcomes]

    return run


@pytest.fixture
def emulate() -> Iterator[Callable[..., Cluster]]:
    """``emulate(hosts, networks)``: emulated hosts (ci/support/hosts.py), gone at the test's end.

    run_ranks(4, body, hosts=places(emulate(2, [Network(rate="1gbit")]), 2, 2))
    """
    if reason := hosts.missing():
        pytest.skip(reason)
    made: list[Cluster] = []

    def make(count: int, networks: Sequence[Network] = (Network(),)) -> Cluster:
        made.append(Cluster(count, networks))
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()


@pytest.fixture
def places() -> Callable[..., list[Host]]:
    """``places(cluster, 2, 1)``: two ranks on its first host, one on the second."""

    def of(cluster: Cluster, *ranks: int) -> list[Host]:
        assert len(ranks) == len(cluster.hosts)
        counted = zip(cluster.hosts, ranks, strict=True)
        return [host for host, count in counted for _ in range(count)]

    return of
