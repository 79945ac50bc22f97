"""A peer's job: its ranks stay up between measurements and answer commands over a UNIX socket.

Interleaving needs that a job which is not being measured takes nothing from the one that is. The
native ranks sleep in read() between commands; a job with threads of its own that keep turning
(Horovod's, oneCCL's) is stopped by SIGSTOP while others are measured (`pause_when_idle`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

START_TIMEOUT_S = 90.0
ANSWER_TIMEOUT_S = 120.0
QUIT_TIMEOUT_S = 10.0


class JobError(Exception):
    """A job did not start, answer, or compute rightly; the message says which and why."""


def end_on_sigterm() -> None:
    """A harness that is asked to end closes its jobs first, as on an interrupt."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)


@dataclass
class Spec:
    """How to start a peer. {socket}, {ranks} and {directory} in `command` are filled in."""

    name: str
    command: list[str]
    version: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    most_ranks: int = 1 << 20
    pause_when_idle: bool = False


class _Rank:
    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(ANSWER_TIMEOUT_S)
        self.socket = connection
        self._lines = connection.makefile("r", encoding="ascii")
        hello = self.read(["hello"])
        self.rank, self.pid = int(hello[0]), int(hello[1])

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
        fill = {"socket": path, "ranks": str(ranks), "directory": self._directory.name}
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [word.format(**fill) for word in spec.command],
                env={**os.environ, **spec.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            with listener:
                self._accept(listener, ranks)
        except BaseException:
            self.kill()
            raise
        self._pause()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, line: str, answer: str) -> list[list[str]]:
        """Sends a command to every rank; returns the words of each rank's answer, by rank."""
        self._resume()
        try:
            for rank in self._ranks:
                rank.socket.sendall((line + "\n").encode())
            return [rank.read([answer]) for rank in self._ranks]
        except (JobError, OSError) as error:
            raise JobError(f"{self.spec.name}: {error}{self._log_tail()}") from None
        finally:
            self._pause()

    def processor_seconds(self) -> float:
        """What all ranks have used so far."""
        ticks = 0
        for rank in self._ranks:
            fields = Path(f"/proc/{rank.pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        self._resume()
        for rank in self._ranks:
            try:
                rank.socket.sendall(b"quit\n")
            except OSError:
                continue
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(QUIT_TIMEOUT_S)
        self.kill()

    def kill(self) -> None:
        """Ends what close() left, or what failed: the ranks by their ids, then their launcher."""
        for rank in self._ranks:
            rank.socket.close()
            if _runs_under(rank.pid, self._directory.name):
                os.kill(rank.pid, signal.SIGKILL)
        self._ranks = []
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            try:
                self._process.wait(QUIT_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        self._directory.cleanup()

    def _accept(self, listener: socket.socket, ranks: int) -> None:
        listener.settimeout(0.2)
        deadline = time.monotonic() + START_TIMEOUT_S
        while len(self._ranks) < ranks:
            try:
                connection, _ = listener.accept()
                self._ranks.append(_Rank(connection))
            except TimeoutError:
                ended = self._process.poll() is not None
                if ended or time.monotonic() > deadline:
                    what = "ended" if ended else f"not ready within {START_TIMEOUT_S:.0f} s"
                    raise JobError(f"{self.spec.name}: start: {what}{self._log_tail()}") from None
        self._ranks.sort(key=lambda rank: rank.rank)

    def _pause(self) -> None:
        if self.spec.pause_when_idle:
            self._signal(signal.SIGSTOP)

    def _resume(self) -> None:
        if self.spec.pause_when_idle:
            self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for rank in self._ranks:
            if _runs_under(rank.pid, self._directory.name):
                os.kill(rank.pid, number)

    def _log_tail(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()[-5:]
        return "".join(f"\n    {line}" for line in lines)


def _runs_under(pid: int, directory: str) -> bool:
    """Is it still the process that we started? (Its command line names the job's directory.)"""
    try:
        return directory.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
