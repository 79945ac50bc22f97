"""The examples of weights: a training, followers that come, go and are killed, and a C program."""

from __future__ import annotations

import functools
import hashlib
import operator
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import pytest
from support.hosts import Host, Network
from support.stages import ROOT

EXAMPLES = ROOT / "examples" / "weights"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
LIMIT_S = 120  # of one wait, on a busy machine
pytestmark = pytest.mark.timeout(400)

_VERSION = re.compile(
    r"^version (\d+), step (\d+): loss ([\d.]+), "
    r"(?:read (\d+) of (\d+) bytes, (\d+) deltas, )?digest (\w{16})$",
    re.MULTILINE,
)


class Version(NamedTuple):
    """What a trainer or a follower has printed of a version."""

    number: int
    step: int
    loss: float
    read: int
    whole: int
    deltas: int
    digest: str


class Program:
    """A running program, whose output goes to a file."""

    def __init__(self, log: Path, command: list[str]) -> None:
        self.log = log
        env = os.environ | {"RINGCOLL_KEY": "secret", "OMP_NUM_THREADS": "1"}
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, cwd=log.parent, env=env
            )

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def versions(self) -> list[Version]:
        return [
            Version(int(n), int(step), float(loss), int(r or 0), int(w or 0), int(d or 0), digest)
            for n, step, loss, r, w, d, digest in _VERSION.findall(self.output())
        ]

    def wait_until(self, condition: Callable[[], Any]) -> Any:
        """Waits for what the program is to bring about, and returns it."""
        end = time.monotonic() + LIMIT_S
        while not (found := condition()):
            assert self._process.poll() is None, f"it has ended:\n{self.output()}"
            assert time.monotonic() < end, f"it does not come:\n{self.output()}"
            time.sleep(0.05)
        return found

    def follow_until(self, count: int, after: int = 0) -> None:
        """Waits until the follower has had so many versions beyond one."""
        self.wait_until(lambda: sum(v.number > after for v in self.versions()) >= count)

    def join(self) -> int:
        return self._process.wait(LIMIT_S)

    def kill(self, number: int = signal.SIGKILL) -> None:
        self._process.send_signal(number)
        self.join()

    def close(self) -> None:
        """Ends it. torchrun ends its ranks when it is terminated, but not when it is killed."""
        self._process.terminate()
        try:
            self._process.wait(40)
        except subprocess.TimeoutExpired:
            self.kill()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """``start("first", program, *words, host=None)``: a Program, gone at the test's end."""
    made: list[Program] = []

    def run(name: str, *words: object, host: Host | None = None) -> Program:
        command = [str(word) for word in words]
        command = host.command(command, tmp_path) if host else command
        made.append(Program(tmp_path / f"{name}.log", command))
        return made[-1]

    yield run
    for program in reversed(made):
        program.close()


@pytest.fixture
def train(start: Callable[..., Program], tmp_path: Path) -> Callable[..., tuple[Program, str]]:
    """``train("--steps", 60, ranks=2, host=None)``: a training, and its address."""

    def run(*words: object, ranks: int = 2, host: Host | None = None) -> tuple[Program, str]:
        file = tmp_path / "address"
        script = (EXAMPLES / "train_transformer.py", "--address-file", file)
        trainer = start("trainer", *TORCHRUN, ranks, *script, *words, host=host)
        return trainer, trainer.wait_until(lambda: file.exists() and file.read_text())

    return run


@pytest.fixture
def follow(start: Callable[..., Program]) -> Callable[..., Program]:
    """``follow("first", address, "--patience", 9, host=None)``: a follower."""

    def run(name: str, *words: object, host: Host | None = None) -> Program:
        return start(name, sys.executable, EXAMPLES / "follow_weights.py", *words, host=host)

    return run


def check(follower: Program, trainer: Program) -> list[Version]:
    """The versions of a follower, which rise and are those of the trainer to the last bit."""
    seen, published = follower.versions(), {v.number: v for v in trainer.versions()}
    assert [v.number for v in seen] == sorted({v.number for v in seen})
    assert seen[0].read == seen[0].whole  # it had nothing yet
    for version in seen:
        there = published[version.number]
        assert (version.step, version.digest) == (there.step, there.digest)
        assert version.read <= version.whole
        assert version.deltas or version.read in (0, version.whole)
    return seen


def losses_fall(trainer: Program) -> bool:
    published = trainer.versions()
    return published[-1].loss < 0.8 * published[0].loss


def test_followers_come_and_go_and_are_killed_while_a_training_goes_on(train, follow):
    trainer, address = train("--steps", 4000, "--every", 10, "--stay", 1)
    first, second = follow("first", address), follow("second", address)
    for follower in (first, second):
        follower.follow_until(2)
    second.kill()
    at_the_kill = second.versions()[-1].number
    again, third = follow("again", address), follow("third", address)
    for follower in (first, again, third):
        follower.follow_until(3, after=at_the_kill)
    trainer.kill(signal.SIGTERM)  # it ends after the next version

    published = [version.number for version in trainer.versions()]
    assert published == list(range(1, len(published) + 1))
    assert losses_fall(trainer), trainer.output()
    for follower in (first, second, again, third):
        check(follower, trainer)
    assert again.versions()[0].number >= at_the_kill


def test_a_follower_on_another_host_reads_deltas_once_the_weights_change_little(
    train, follow, emulate
):
    near, far = emulate(2, [Network(rate="1gbit")]).hosts
    words = ("--steps", 240, "--decay", 0.975, "--every", 4, "--keep", 30, "--stay", 5)
    trainer, address = train(*words, host=near)
    follower = follow("follower", address, "--patience", 10, host=far)
    assert trainer.join() == 0, trainer.output()
    assert losses_fall(trainer)
    seen = check(follower, trainer)
    assert seen[-1].number == 60, "the last version was there for 5 s"
    assert any(v.deltas for v in seen)
    assert min(v.read / v.whole for v in seen) < 0.7
    assert follower.join() == 0, follower.output()  # nothing new has come for some time


def test_a_c_program_reads_the_versions_as_files(train, start, tmp_path):
    program, files = tmp_path / "sum_weights", tmp_path / "files"
    source = EXAMPLES / "sum_weights.c"
    subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", program, source], check=True)
    reader = start("reader", program, files, "head.weight")
    words = ("--steps", 80, "--every", 10, "--keep", 100, "--dtype", "float32", "--path", files)
    trainer, _ = train(*words, "--stay", 3, ranks=1)
    assert trainer.join() == 0, trainer.output()
    latest = (files / "latest").readlink().name  # the files have stayed
    reader.wait_until(lambda: f"version {latest}: " in reader.output())

    sums = re.findall(r"^version (\d+): sum (\S+)$", reader.output(), re.MULTILINE)
    numbers = [int(number) for number, _ in sums]
    assert len(numbers) >= 2
    assert numbers == sorted(set(numbers))
    published = {version.number: version.digest for version in trainer.versions()}
    for number, found in sums:
        weights = {f.stem: numpy.load(f, mmap_mode="r") for f in (files / number).glob("*.npy")}
        values = weights["head.weight"].ravel().tolist()
        assert float(found) == functools.reduce(operator.add, values, 0.0)
        digest = hashlib.sha256(b"".join(weights[name].tobytes() for name in sorted(weights)))
        assert digest.hexdigest()[:16] == published[int(number)]
