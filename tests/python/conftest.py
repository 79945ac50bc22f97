"""The command ``ringcoll`` in the background."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """``start("probe", "--wait", 2, RANK="0")``: the command, of a user who has set nothing else
    of ringcoll; killed at the test's end."""
    running: list[subprocess.Popen[str]] = []
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RINGCOLL_")}

    def run(*words: object, **env: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "ringcoll", *map(str, words)]
        running.append(
            subprocess.Popen(
                command,
                env=clean | env,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd="/",  # not a folder with a ringcoll/ that would be taken for the installed one
            )
        )
        return running[-1]

    yield run
    for process in running:
        with process:
            process.kill()
