"""Other programs that start Horovod's jobs: run in processes of their own, which all end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

JOBS = Path(__file__).parent / "jobs"
LIMIT_S = 500  # Spark alone takes a minute to begin on a busy machine

GRACE_S = 30  # Ray's own processes end one after another, after the program that started them


def environment(**named: str) -> dict[str, str]:
    """Of a user who has set nothing but ``named``."""
    ours = ("HOROVOD_", "RINGCOLL_", "OMPI_", "PMI", "RAY_", "SPARK_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return clean | {
        "PATH": f"{Path(sys.executable).parent}:{clean.get('PATH', '')}",
        "PYTHONPATH": str(JOBS),
        "OMP_NUM_THREADS": "1",
        "RINGCOLL_TIMEOUT_S": "60",
        "RAY_AUTH_MODE": "disabled",  # it would leave a token in the home directory
        "RAY_USAGE_STATS_ENABLED": "0",
        **named,
    }


def processes_of(mark: str) -> list[int]:
    """Those with ``mark`` in their environment, as it was when they were started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:  # it has ended, or is another user's
            continue
    return found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(LIMIT_S + 60))


@pytest.fixture
def run_job(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """``run_job(command, **environment)``: its output. Fails the test if the status is not 0. What
    it leaves running is ended, and fails the test too."""
    mark = f"TEST_ENGINES={tmp_path}"

    def run(command: list[Any], **named: str) -> str:
        log = tmp_path / "log"
        with open(log, "ab") as stream:
            process = subprocess.Popen(
                [str(part) for part in command],
                env=environment(TEST_ENGINES=str(tmp_path), **named),
                cwd=tmp_path,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status = process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                status = None
                process.kill()
                process.wait()
        text = log.read_text(errors="replace")
        assert status == 0, f"status {status}:\n{text[-8000:]}"
        return text

    yield run
    end = time.monotonic() + GRACE_S
    while (left := processes_of(mark)) and time.monotonic() < end:
        time.sleep(0.2)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert not left, f"{len(left)} processes were left running"


def check_facts(facts: list[dict[str, Any]], backend: str, ranks: int) -> list[float]:
    """That all ranks trained alike by the backend; the weights."""
    assert sorted(each["rank"] for each in facts) == list(range(ranks))
    for each in facts:
        assert each["size"] == ranks
        assert each["ringcoll"] == (backend == "RINGCOLL"), backend
        assert each["weights"] == facts[0]["weights"]
    return facts[0]["weights"]


@pytest.fixture
def check() -> Callable[..., list[float]]:
    """``check(facts, backend, ranks)``: see check_facts."""
    return check_facts
