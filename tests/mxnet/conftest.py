"""Workers of MXNet's stores: threads over tables in memory, or processes of MXNet's launchers."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent
LIMIT_S = 240.0


@pytest.fixture(params=["memory", "ringcoll"])
def workers(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., list[Any]]]:
    """Runs a program with a store in each of several workers, which are threads, and returns what
    it returns. The tests of stores know nothing else of where the tables are."""
    # Imported here, since the tests of the hook and of launchers do without.
    import tables_in_memory
    import tables_of_ringcoll

    from ringcoll.mxnet import optimizers
    from ringcoll.mxnet.store import Ringcoll

    made: list[Any] = []
    make = tables_of_ringcoll.jobs
    if request.param == "memory":
        make = tables_in_memory.jobs
        monkeypatch.setattr(optimizers, "merging", tables_in_memory.Merging)
        monkeypatch.setattr(optimizers, "python_rule", tables_in_memory.Python.of)

    def run(program: Callable[[Any], Any], kind: str = "dist_sync", size: int = 2) -> list[Any]:
        made.extend(jobs := make(size))
        with ThreadPoolExecutor(size) as pool:
            started = [pool.submit(lambda j: program(Ringcoll(kind, job=j)), j) for j in jobs]
            return [each.result(LIMIT_S) for each in started]

    yield run
    with ThreadPoolExecutor(max(1, len(made))) as pool:
        list(pool.map(lambda job: job.store.close(), made))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


class Launched:
    """A job as MXNet's launchers start it: a scheduler, servers and workers on this host."""

    def __init__(self, command: list[str], workers: int, servers: int, **env: str) -> None:
        place = {"DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": str(free_port())}
        counts = {"DMLC_NUM_WORKER": str(workers), "DMLC_NUM_SERVER": str(servers)}
        self._env = os.environ | place | counts | env
        just_import = [sys.executable, "-P", "-W", "ignore", "-c", "import mxnet"]
        self.scheduler = self._start("scheduler", just_import)
        self.servers = [self._start("server", just_import) for _ in range(servers)]
        self.workers = [self._start("worker", command) for _ in range(workers)]

    def _start(self, role: str, command: list[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            env=self._env | {"DMLC_ROLE": role},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    @property
    def processes(self) -> list[subprocess.Popen[str]]:
        return [self.scheduler, *self.servers, *self.workers]

    def finish(self) -> list[str]:
        """Waits for all, and returns what the workers have printed. All have to succeed."""
        said = [each.communicate(timeout=LIMIT_S)[0] for each in reversed(self.processes)][::-1]
        codes = [each.returncode for each in self.processes]
        assert codes == [0] * len(codes), "\n".join(said)
        return said[1 + len(self.servers) :]

    def end(self) -> None:
        for each in self.processes:
            if each.poll() is None:
                each.kill()
            each.communicate()


@pytest.fixture
def launched():
    """Starts jobs; what is left of them after the test is killed."""
    started: list[Launched] = []

    def launch(command: list[str], workers: int = 2, servers: int = 1, **env: str) -> Launched:
        started.append(Launched([sys.executable, *command], workers, servers, **env))
        return started[-1]

    yield launch
    for job in started:
        job.end()
