"""Children that a rank forks while it is in a job, as data loaders do."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import numpy as np

import ringcoll
from support.soak import stacks
from support.soak.buffers import Wrong
from support.soak.script import Fork


class Children:
    def __init__(self) -> None:
        self._pids: dict[int, Fork] = {}

    def fork(self, step: Fork, world: ringcoll.Communicator) -> None:
        pid = os.fork()
        if pid == 0:
            code = 99
            try:
                code = _be_child(step, world)
            finally:
                os._exit(code)
        self._pids[pid] = step

    def reap(self, seconds: float = 20) -> None:
        """Waits for all; raises Wrong if one has not ended well."""
        end = time.monotonic() + seconds
        for pid, step in self._pids.items():
            while not (found := os.waitpid(pid, os.WNOHANG))[0]:
                if time.monotonic() > end:
                    where = stacks.of(pid, Path(f"output.{step.rank}"))
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                    raise Wrong(f"{step}: the child has not ended within {seconds} s\n{where}")
                time.sleep(0.002)
            if found[1]:
                raise Wrong(f"{step}: the child has ended with {found[1]:#x}")
        self._pids.clear()


def _be_child(step: Fork, world: ringcoll.Communicator) -> int:
    if step.kind == "linger":
        time.sleep(step.life_ms / 1e3)
    elif step.kind == "exec":
        os.execv("/bin/sleep", ["sleep", str(step.life_ms / 1e3)])
    elif step.kind == "call":
        with contextlib.suppress(ringcoll.InvalidArgument):
            world.allreduce(np.ones(4, "f4"))
            return 1
    elif step.kind == "init":
        ringcoll.shutdown()
        alone = ringcoll.init(0, 1, "local://child")
        if alone.allreduce(np.ones(4, "f4"))[3] != 1:
            return 2
        ringcoll.shutdown()
    return 0
