"""Workers of MXNet's stores: threads over tables in memory, or processes of MXNet's launchers."""

from __future__ import annotations

import concurrent.futures
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from launched import LIMIT_S, Launched


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
        pool = ThreadPoolExecutor(size)
        started = [pool.submit(lambda j: program(Ringcoll(kind, job=j)), j) for j in jobs]
        # Those that wait for one that has failed would wait for ever.
        for first in concurrent.futures.as_completed(started, LIMIT_S):
            first.result()
        return [each.result() for each in started]

    yield run
    with ThreadPoolExecutor(max(1, len(made))) as pool:
        list(pool.map(lambda job: job.store.close(), made))


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
