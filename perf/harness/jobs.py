"""A peer's job: its ranks stay up between measurements and answer commands over a UNIX socket.

Interleaving needs that a job which is not being measured takes nothing from the one that is. The
native ranks sleep in read() between commands; a job with threads of its own that keep turning
(Horovod's, oneCCL's) is stopped by SIGSTOP while others are measured (`pause_when_idle`).

A job may be spread over hosts: then each host has a part of it, a command that starts some of the
ranks there. UNIX sockets are reached by their path from any network namespace.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

START_TIMEOUT_S = 90.0
ANSWER_TIMEOUT_S = 120.0
QUIT_TIMEOUT_S = 10.0
_FOLDERS = re.compile(r"(?<![\w./])/(?:[\w.+@~-]+/)+")  # of an absolute path


class JobError(Exception):
    """A job did not start, answer, or compute rightly; the message says which and why."""


def end_on_sigterm() -> None:
    """A harness that is asked to end closes its jobs first, as on an interrupt."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)


@dataclass(frozen=True)
class Part:
    """What one host has of a job: its ranks, and what makes a command one that runs there."""

    ranks: list[int]
    there: Callable[[list[str]], list[str]]


@dataclass
class Spec:
    """How to start a peer. {socket}, {ranks} and {directory} in `command` are filled in. With
    `parts` it is started on each host, and told its ranks by PERF_RANKS."""

    name: str
    command: list[str]
    version: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    most_ranks: int = 1 << 20
    pause_when_idle: bool = False
    parts: list[Part] = field(default_factory=list)


class _Rank:
    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(ANSWER_TIMEOUT_S)
        self.socket = connection
        self._lines = connection.makefile("r", encoding="ascii")
        # As this process sees it, whatever pid namespace the rank is in (unix(7), SO_PEERCRED).
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        self.pid = int(struct.unpack("3i", credentials)[0])
        self.rank = int(self.read(["hello"])[0])

    def read(self, expected: list[str]) -> list[str]:
        try:
            line = self._lines.readline()
        except TimeoutError:
            raise JobError(f"no answer within {ANSWER_TIMEOUT_S:.0f} s") from None
        word, *rest = line.split() or [""]
        if word == "error":
            raise JobError(" ".join(rest))
        if word not in expected:
            raise JobError("a rank ended" if not line else f"unexpected answer: {line.strip()}")
        return rest


class Job:
    """Started by the constructor, ended by close(); a context manager."""

    def __init__(self, spec: Spec, ranks: int, log_directory: Path) -> None:
        self.spec = spec
        self._ranks: list[_Rank] = []
        self._directory = tempfile.TemporaryDirectory(prefix="perf-")
        self._log = log_directory / f"{spec.name.replace(' ', '-')}-{ranks}.log"
        path = f"{self._directory.name}/socket"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(path)
        listener.listen(ranks)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._way = ""
        try:
            self._start({"socket": path, "ranks": str(ranks), "directory": self._directory.name})
            with listener:
                self._accept(listener, ranks)
        except BaseException:
            self.kill()
            raise
        self._pause()

    def _start(self, fill: dict[str, str]) -> None:
        command = [word.format(**fill) for word in self.spec.command]
        starts = [(command, {})] if not self.spec.parts else []
        for part in self.spec.parts:
            starts.append((part.there(command), {"PERF_RANKS": ",".join(map(str, part.ranks))}))
        with open(self._log, "wb") as log:
            for words, variables in starts:
                process = subprocess.Popen(
                    words,
                    env={**os.environ, **self.spec.environment, **variables},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                self._processes.append(process)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, line: str, answer: str) -> list[list[str]]:
        """Sends a command to every rank; returns the words of each rank's answer, by rank."""
        if not self._ranks:
            raise JobError(f"{self.spec.name}: it has ended")
        self._resume()
        try:
            for rank in self._ranks:
                rank.socket.sendall((line + "\n").encode())
            return [rank.read([answer]) for rank in self._ranks]
        except (JobError, OSError) as error:
            raise JobError(f"{self.spec.name}: {error}{self._log_tail()}") from None
        finally:
            self._pause()

    def use(self, way: str, settings: dict[str, str]) -> None:
        """Chooses how the commands that follow are done (drivers/bench.h, "use")."""
        if way != self._way:
            words = [f"{name}={value}" for name, value in settings.items()]
            self.ask(" ".join(["use", way, *words]), "using")
            self._way = way

    def processor_seconds(self) -> float:
        """What all ranks have used so far."""
        return sum(self.processor_seconds_by_rank())

    def processor_seconds_by_rank(self) -> list[float]:
        spent = []
        for rank in self._ranks:
            try:
                spent.append(time.clock_gettime(_processor_clock(rank.pid)))
            except OSError:
                raise JobError(f"{self.spec.name}: rank {rank.rank} has ended") from None
        return spent

    def close(self) -> None:
        self._resume()
        for rank in self._ranks:
            try:
                rank.socket.sendall(b"quit\n")
            except OSError:
                continue
        deadline = time.monotonic() + QUIT_TIMEOUT_S
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        self.kill()

    def kill(self) -> None:
        """Ends what close() left, or what failed: the ranks by their ids, then their launcher."""
        for rank in self._ranks:
            rank.socket.close()
            if _runs_under(rank.pid, self._directory.name):
                os.kill(rank.pid, signal.SIGKILL)
        self._ranks = []
        running = [process for process in self._processes if process.poll() is None]
        for process in running:
            os.killpg(process.pid, signal.SIGTERM)
        for process in running:
            try:
                process.wait(QUIT_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self._directory.cleanup()

    def _accept(self, listener: socket.socket, ranks: int) -> None:
        listener.settimeout(0.2)
        deadline = time.monotonic() + START_TIMEOUT_S
        while len(self._ranks) < ranks:
            try:
                connection, _ = listener.accept()
                self._ranks.append(_Rank(connection))
            except TimeoutError:
                ended = any(process.poll() is not None for process in self._processes)
                if ended or time.monotonic() > deadline:
                    what = "ended" if ended else f"not ready within {START_TIMEOUT_S:.0f} s"
                    raise JobError(f"{self.spec.name}: start: {what}{self._log_tail()}") from None
        self._ranks.sort(key=lambda rank: rank.rank)

    def _pause(self) -> None:
        if self.spec.pause_when_idle:
            self._signal(signal.SIGSTOP)

    def _resume(self) -> None:
        if not self.spec.pause_when_idle:
            return
        self._signal(signal.SIGCONT)
        # nsenter(1) stops itself when its child is stopped.
        for process in self._processes if self.spec.parts else []:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for rank in self._ranks:
            if _runs_under(rank.pid, self._directory.name):
                os.kill(rank.pid, number)

    def _log_tail(self) -> str:
        """Its end, without the folders of this machine: it may come to stand in a result."""
        lines = self._log.read_text(errors="replace").strip().splitlines()[-5:]
        return "".join(f"\n    {_FOLDERS.sub('', line)}" for line in lines)


class Way:
    """One way in which a job computes, measured like a job of its own. close() leaves the job."""

    def __init__(self, job: Job, way: str, settings: dict[str, str]) -> None:
        self.spec = job.spec
        self._job, self._way, self._settings = job, way, settings

    def ask(self, line: str, answer: str) -> list[list[str]]:
        self._job.use(self._way, self._settings)
        return self._job.ask(line, answer)

    def processor_seconds(self) -> float:
        return self._job.processor_seconds()

    def processor_seconds_by_rank(self) -> list[float]:
        return self._job.processor_seconds_by_rank()

    def close(self) -> None:
        pass

    def kill(self) -> None:
        self._job.kill()


def _processor_clock(pid: int) -> int:
    """The clock of all threads of a process, which counts nanoseconds where /proc counts ticks.

    What clock_getcpuclockid(3) gives: Linux makes such clocks' numbers from the process's id.
    """
    return ~pid << 3 | 2


def _runs_under(pid: int, directory: str) -> bool:
    """Is it still the process that we started? (Its command line names the job's directory.)"""
    try:
        return directory.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
