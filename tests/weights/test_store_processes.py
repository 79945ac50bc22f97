"""Stores of real processes that are killed and stopped."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from stores import wait_until

import ringcoll

_WORKER = Path(__file__).parent / "store_worker.py"
LIMIT_S = 60

X = numpy.arange(100_000, dtype="float32")


class Worker:
    """A process with a store. ``ask("store.commit()")`` is the value of an expression there."""

    def __init__(self, *words: object) -> None:
        command = [sys.executable, str(_WORKER), *map(str, words)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/"
        )
        self.address = ""

    def begin(self, expression: str) -> None:
        self.process.stdin.write(expression + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert select.select([self.process.stdout], [], [], LIMIT_S)[0], "no answer"
        return json.loads(self.process.stdout.readline())

    def ask(self, expression: str) -> Any:
        self.begin(expression)
        return self.answer()

    def send(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def end(self) -> None:
        for number in (signal.SIGCONT, signal.SIGKILL):
            if self.process.poll() is None:
                self.send(number)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            pipe.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., list[Worker]]]:
    """``start(3, replicas=1)``: the processes of so many ranks."""
    running: list[Worker] = []

    def ranks(count: int, replicas: int = 1) -> list[Worker]:
        workers = [Worker("rank", r, count, tmp_path, replicas) for r in range(count)]
        running.extend(workers)
        for worker in workers:
            worker.address = worker.answer()
        return workers

    ranks.running = running  # type: ignore[attr-defined]
    yield ranks
    for worker in running:
        worker.end()


def _commit(workers: list[Worker]) -> list[Any]:
    for worker in workers:
        worker.begin("store.commit()")
    return [worker.answer() for worker in workers]


def _guest(worker: Worker) -> ringcoll.Store:
    return ringcoll.Store("weights", ringcoll.connect(worker.address, key="secret"), timeout=30)


def _fill(workers: list[Worker], value: int, count: int = 8) -> None:
    for worker in workers:
        for i in range(count):
            worker.ask(f"store.put('w{i}', numpy.full(100_000, {value}, 'float32'))")


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_holder(start: Any, victim: int) -> None:
    workers = start(3)
    _fill(workers, 1)
    assert _commit(workers) == [1, 1, 1]
    with _guest(workers[0]) as guest:
        guest.get("w0")
        workers[victim].send(signal.SIGKILL)
        begin = time.monotonic()
        for i in range(8):
            assert (guest.get(f"w{i}") == 1).all()
        assert time.monotonic() - begin < 2
        guest.put("n", X)
        assert guest.commit() == 2
        wait_until(lambda: guest.info()["replicas"] == {"wanted": 1, "had": 1})
        assert len(guest.info()["holders"]) == 2


@pytest.mark.parametrize("delay", [0.0, 0.002, 0.01, 0.03])
def test_a_writer_killed_in_a_commit(start: Any, delay: float) -> None:
    workers = start(3)
    _fill(workers, 1)
    _commit(workers)
    _fill(workers, 2)
    with _guest(workers[0]) as guest:
        for worker in workers:
            worker.begin("store.commit()")
        time.sleep(delay)
        workers[0].send(signal.SIGKILL)
        answers = {str(worker.answer()) for worker in workers[1:]}
        assert len(answers) == 1
        (answer,) = answers
        number = guest.versions()[-1].number
        assert answer == "2" if number == 2 else answer.startswith("PeerLost: rank 0")
        values = {int(value[0]) for value in guest.get_state_dict().values()}
        assert values == {number}


def test_a_stopped_leader(start: Any) -> None:
    workers = start(3)
    _fill(workers, 1)
    _commit(workers)
    with _guest(workers[0]) as guest:
        guest.get("w0")
        workers[0].send(signal.SIGSTOP)
        begin = time.monotonic()
        for i in range(8):
            assert (guest.get(f"w{i}") == 1).all()
        assert time.monotonic() - begin < 2.5
        guest.put("n", X)
        assert guest.commit() == 2
        workers[0].send(signal.SIGCONT)
        wait_until(lambda: len(guest.info()["holders"]) == 3)
        assert workers[0].ask("float(store.get('n')[99])") == 99.0


def test_a_holder_that_joins_and_takes_over(start: Any) -> None:
    (first,) = start(1)
    _fill([first], 1)
    _commit([first])
    second = Worker("guest", first.address, "hold")
    start.running.append(second)
    second.answer()
    with _guest(first) as guest:
        wait_until(lambda: guest.info()["replicas"] == {"wanted": 1, "had": 1})
        first.send(signal.SIGKILL)
        assert (guest.get("w7") == 1).all()
        assert second.ask("store.commit()") == 2


def test_a_process_that_ends_is_noticed_as_leaving(start: Any) -> None:
    workers = start(2, replicas=0)
    _fill(workers, 1)
    _commit(workers)
    with _guest(workers[0]) as guest:
        workers[1].process.stdin.close()  # it ends its program
        assert workers[1].process.wait(20) == 0
        wait_until(lambda: len(guest.info()["holders"]) == 1)
        guest.put("n", X)
        assert guest.commit() == 2
