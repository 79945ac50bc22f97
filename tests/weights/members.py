"""Processes with a store (jobs/member.py), and what tests ask of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import signals
from support.hosts import Host

JOB = Path(__file__).parent / "jobs" / "member.py"
SIZE = 1 << 20  # bytes of a tensor
LIMIT_S = 90.0  # for any answer


class Failed(Exception):
    """What a member answers if a method of its store raises. ``kind`` is the class of the error."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


class Member:
    """A process with a store. ``host`` is an emulated host, or the name of one that it takes itself
    to be on; ``prefix`` are words before the command."""

    def __init__(
        self,
        how: str,
        where: str,
        host: str | Host,
        replicas: int = 1,
        prefix: Sequence[str] = (),
    ) -> None:
        env = {k: v for k, v in os.environ.items() if not k.startswith("RINGCOLL_")}
        command = [*prefix, sys.executable, "-P", str(JOB), how, where, str(replicas)]
        if isinstance(host, Host):
            command = host.command(command, "/")
        else:
            env["RINGCOLL_HOSTID"] = host
        self.process = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/"
        )
        self.address = self.hear()  # where it admits guests, or has come to; its store is open

    def hear(self) -> Any:
        assert self.process.stdout
        killer = threading.Timer(LIMIT_S, self.process.kill)
        killer.start()
        try:
            line = self.process.stdout.readline()
        finally:
            killer.cancel()
        if not line:
            raise Failed("Ended", f"the process has ended with {self.process.wait()}")
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
            raise Failed(answer["error"], answer["text"])
        return answer["value"]

    def signal(self, number: int) -> None:
        signals.send(self.process, number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        with self.process:
            self.process.kill()


def sum_of(seed: int) -> int:
    """The sum of a tensor that a member has made of a seed."""
    values = numpy.random.default_rng(seed).integers(0, 1 << 32, SIZE // 4, "uint32")
    return int(values.sum(dtype="uint64"))


def sums_of(seeds: dict[str, int]) -> dict[str, int]:
    return {name: sum_of(seed) for name, seed in seeds.items()}


def publish(member: Member, seeds: dict[str, int]) -> int:
    member.ask("put", tensors=seeds, size=SIZE)
    return int(member.ask("commit"))


def expect(member: Member, version: int, seeds: dict[str, int], within: float) -> None:
    """The version is latest, with these tensors, and read within so many seconds."""
    number, sums, seconds = member.ask("sums")
    assert number == version
    assert sums == sums_of(seeds)
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
