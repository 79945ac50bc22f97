"""The command ``ringcoll`` on emulated hosts, as the ranks of a job of torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from support.hosts import Host

PORT = 29511
LIMIT_S = 150
Variables = Mapping[str, object]


@pytest.fixture
def run_command(tmp_path: Path) -> Iterator[Callable[..., tuple[list[str], list[str], list[int]]]]:
    """``run_command(places, words, env={}, of={rank: env}, ranks=None)``: ``ringcoll WORDS`` of
    each rank, or of ``ranks``, on its host, with what torchrun would set and nothing else of
    ringcoll. What each printed, its errors and its status. None outlives the test."""
    running: list[subprocess.Popen[str]] = []
    ours = ("RINGCOLL_", "HOROVOD_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(ours)}

    def start(host: Host, command: Sequence[str], env: Variables) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            host.command(command, "/"),
            env=clean | {name: str(value) for name, value in env.items()},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        return process

    def run(
        places: Sequence[Host],
        words: Sequence[object],
        env: Variables | None = None,
        of: Mapping[int, Variables] | None = None,
        ranks: Iterable[int] | None = None,
    ) -> tuple[list[str], list[str], list[int]]:
        command = [sys.executable, "-m", "ringcoll", *map(str, words)]
        job: dict[str, object] = {"WORLD_SIZE": len(places), "LOCAL_WORLD_SIZE": 1}
        job |= {"MASTER_ADDR": "h1", "MASTER_PORT": PORT, "TMPDIR": tmp_path, **(env or {})}
        started = [
            start(places[rank], command, {**job, "RANK": rank, **(of or {}).get(rank, {})})
            for rank in (range(len(places)) if ranks is None else ranks)
        ]
        ended = [process.communicate(timeout=LIMIT_S) for process in started]
        out, errors = ([text[stream] for text in ended] for stream in (0, 1))
        return out, errors, [process.returncode for process in started]

    yield run
    for process in running:
        with process:
            process.kill()
