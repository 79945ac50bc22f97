"""Jobs of MXNet as its launchers start them: a scheduler, servers and workers on this host."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

LIMIT_S = 240.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


class Launched:
    """One such job. The workers run ``command`` in ``folder``, and the others ``import mxnet``."""

    def __init__(
        self, command: list[str], workers: int, servers: int, folder: Path | None = None, **env: str
    ) -> None:
        place = {"DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": str(free_port())}
        counts = {"DMLC_NUM_WORKER": str(workers), "DMLC_NUM_SERVER": str(servers)}
        self._env = os.environ | place | counts | env
        self._folder = folder
        just_import = [sys.executable, "-P", "-W", "ignore", "-c", "import mxnet"]
        self.scheduler = self._start("scheduler", just_import)
        self.servers = [self._start("server", just_import) for _ in range(servers)]
        self.workers = [self._start("worker", command) for _ in range(workers)]

    def _start(self, role: str, command: list[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            env=self._env | {"DMLC_ROLE": role},
            cwd=self._folder,
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
