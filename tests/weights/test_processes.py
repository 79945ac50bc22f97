"""Stores of real processes on two hosts, of which some are killed, stopped and started again."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

JOB = Path(__file__).parent / "jobs" / "member.py"
SIZE = 1 << 20  # bytes of a tensor


class Failed(Exception):
    """What a member answers if a method of its store raises."""


class Member:
    """A process with a store, on the host ``host``."""

    def __init__(self, how: str, where: str, host: str, replicas: int = 1) -> None:
        env = {k: v for k, v in os.environ.items() if not k.startswith("RINGCOLL_")}
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(JOB), how, where, str(replicas)],
            env=env | {"RINGCOLL_HOSTID": host},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
        )
        self.address = self.hear()

    def hear(self) -> Any:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise Failed(f"the process has ended with {self.process.wait()}")
        return json.loads(line)

    def say(self, word: str, **arguments: Any) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps([word, arguments]) + "\n")
        self.process.stdin.flush()

    def ask(self, word: str, **arguments: Any) -> Any:
        self.say(word, **arguments)
        return self.answer()

    def answer(self) -> Any:
        answer = self.hear()
        if "error" in answer:
            raise Failed(f"{answer['error']}: {answer['text']}")
        return answer["value"]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        with self.process:
            self.process.kill()


@pytest.fixture
def start() -> Iterator[Callable[..., Member]]:
    """``start("join", address, "b")``: a member, which is killed at the test's end."""
    members: list[Member] = []

    def run(how: str, where: str, host: str, **options: Any) -> Member:
        members.append(Member(how, where, host, **options))
        return members[-1]

    yield run
    for member in members:
        member.close()


def sum_of(seed: int) -> int:
    values = numpy.random.default_rng(seed).integers(0, 1 << 32, SIZE // 4, "uint32")
    return int(values.sum(dtype="uint64"))


def publish(member: Member, seeds: dict[str, int]) -> int:
    member.ask("put", tensors=seeds, size=SIZE)
    return int(member.ask("commit"))


def expect(member: Member, version: int, seeds: dict[str, int], within: float) -> None:
    """The version is latest, with these tensors, and read within so many seconds."""
    number, sums, seconds = member.ask("sums")
    assert number == version
    assert sums == {name: sum_of(seed) for name, seed in seeds.items()}
    assert seconds < within


def await_copies(member: Member, count: int, holders: int) -> None:
    """Waits until every piece has so many copies, and the store knows who has ended."""
    end = time.monotonic() + 15
    while True:
        info = member.ask("info")
        if info["replicas"]["had"] >= count - 1 and len(info["holders"]) == holders:
            return
        assert time.monotonic() < end, info
        time.sleep(0.1)


def door_of(member: Member) -> str:
    """Where a member that lives admits guests."""
    info = member.ask("info")
    return str(info["holders"][info["this"]["id"]]["addresses"][0])


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("who", ["leader", "replica"])
def test_readers_go_on_within_two_seconds(start, stop, who):
    leader = start("found", "w", "a")
    replica = start("join", leader.address, "b")
    third = start("join", leader.address, "c")
    reader = start("visit", leader.address, "d")
    seeds = {f"layer.{i}": i for i in range(8)}
    version = publish(leader, seeds)
    expect(reader, version, seeds, within=5)
    {"leader": leader, "replica": replica}[who].signal(stop)
    # The machine may be busy: what counts is that nobody waits for a deadline of tens of seconds.
    expect(reader, version, seeds, within=4)
    expect(third, version, seeds, within=4)


def test_nothing_committed_is_lost_with_its_writer(start):
    writer = start("found", "w", "a")
    other = start("join", writer.address, "b")
    seeds = {"x": 1, "y": 2}
    version = publish(writer, seeds)
    writer.kill()
    expect(other, version, seeds, within=5)
    assert publish(other, {"x": 3}) == version + 1
    expect(other, version + 1, {"x": 3, "y": 2}, within=5)


def test_a_joiner_is_filled_while_all_goes_on(start):
    first = start("found", "w", "a")
    second = start("join", first.address, "b")
    seeds = {f"layer.{i}": i for i in range(4)}
    version = publish(first, seeds)
    await_copies(first, 2, holders=2)
    second.kill()
    third = start("join", first.address, "c")
    await_copies(first, 2, holders=2)
    first.kill()
    expect(third, version, seeds, within=5)


@pytest.mark.parametrize("seed", range(3))
def test_holders_killed_at_any_moment_of_a_commit(start, seed):
    """In each round a member is killed while the writer commits, and another one comes. A commit
    that has returned is read by all; one that has not is read as a whole or not at all."""
    chance = random.Random(seed)
    members = [start("found", "w", "a")]
    members += [start("join", members[0].address, host) for host in "bc"]
    committed: dict[str, int] = {}
    for round_ in range(6):
        writer, victim = chance.sample(members, 2)
        seeds = {f"layer.{i}": chance.randrange(1 << 30) for i in range(3)}
        writer.ask("put", tensors=seeds, size=SIZE)
        writer.say("commit")
        lost = chance.choice([writer, victim])
        time.sleep(chance.uniform(0, 0.02))
        lost.kill()
        members.remove(lost)
        done = False
        if lost is not writer:
            try:
                writer.answer()
                done = True
            except Failed as error:
                assert "PeerLost" in str(error) or "Timeout" in str(error), error
        reader = chance.choice(members)
        try:
            _, sums, _ = reader.ask("sums")
        except Failed:
            assert not committed
            sums = {}
        new = {name: sum_of(value) for name, value in (committed | seeds).items()}
        old = {name: sum_of(value) for name, value in committed.items()}
        assert sums in ([new] if done else [new, old]), f"round {round_}"
        if sums == new:
            committed |= seeds
        if committed:
            await_copies(reader, 2, holders=len(members))
        members.append(start("join", door_of(reader), "abc"[round_ % 3]))
