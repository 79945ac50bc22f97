"""Agents in two processes that copy by the RDMA of a real kernel device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ringcoll
from ringcoll import remote

pytestmark = pytest.mark.guest(cpus=2, timeout=300)

JOB = Path(__file__).parent / "jobs" / "owner.py"
BYTES = 64 << 20
MIB = 1 << 20
PATTERN = (np.arange(BYTES, dtype="uint64") % 251).astype("uint8")


class Owner:
    """A process that owns a region, as on a host of its own: nobody maps its memory."""

    def __init__(self, name: str, length: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(JOB), str(length)],
            env={**os.environ, "RINGCOLL_HOSTID": name},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.url, handle = self.hear().split()
        self.handle = bytes.fromhex(handle)

    def hear(self) -> str:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, f"the owner has ended with {self.process.wait()}"
        return line.strip()

    def ask(self, *words: object) -> Any:
        assert self.process.stdin
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        return json.loads(self.hear())


@pytest.fixture
def own() -> Iterator[Callable[..., Owner]]:
    """``own("one", length)``: an owner, which is killed at the test's end."""
    owners: list[Owner] = []

    def start(name: str = "one", length: int = BYTES) -> Owner:
        owners.append(Owner(name, length))
        return owners[-1]

    yield start
    for each in owners:
        with each.process:
            each.process.kill()


@pytest.fixture
def join(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., remote.Agent]]:
    """``join(owner)``: an agent of this process, as of another host, that knows the key."""
    agents: list[remote.Agent] = []

    def connect(owner: Owner, transport: str = "auto") -> remote.Agent:
        monkeypatch.setenv("RINGCOLL_HOSTID", "reader")
        monkeypatch.setenv("RINGCOLL_TRANSPORT", transport)
        agents.append(ringcoll.connect(owner.url, key="key"))
        return agents[-1]

    yield connect
    for agent in agents:
        agent.close()


def test_copies_leave_the_owners_process_out_of_it(own, join, device):
    owner = own()
    agent = join(owner)
    out, sent = remote.empty(BYTES, "uint8"), np.full(BYTES, 7, "uint8")
    agent.read(owner.handle, out[:MIB])  # which joins them
    before = owner.ask("stats")
    begin = time.monotonic()
    with device.counting() as moved:
        agent.read(owner.handle, out)
        agent.write(owner.handle, sent, notice=5)
    took = time.monotonic() - begin
    after = owner.ask("stats")
    assert (out == PATTERN).all()
    assert owner.ask("notice") == 5
    assert owner.ask("count", 7) == BYTES
    assert agent.stats()["by"] == {"host": 0, "tcp": 0, "rdma": 2 * BYTES + MIB}
    assert after["answered"] == 0
    # The device in software works in threads of the kernel.
    assert after["cpu"] - before["cpu"] < 0.1 * took + 0.05
    assert device.packets_sent(moved) >= 2 * BYTES / 4096


def test_tcp_is_used_where_the_knob_says_so(own, join):
    owner = own(length=MIB)
    agent = join(owner, transport="tcp")
    out = np.zeros(MIB, "uint8")
    agent.read(owner.handle, out)
    assert (out == PATTERN[:MIB]).all()
    assert agent.stats()["by"] == {"host": 0, "tcp": MIB, "rdma": 0}
    assert owner.ask("stats")["answered"] == MIB


def test_a_region_that_is_closed_in_the_middle_is_gone(own, join):
    owner = own()
    agent = join(owner)
    out = np.zeros(BYTES, "uint8")
    agent.read(owner.handle, out[:MIB])
    reading = agent.read_async(owner.handle, out)
    time.sleep(0.05)
    owner.ask("close")
    with pytest.raises(ringcoll.Gone):
        reading.wait()


def test_who_was_stopped_does_not_take_the_device_for_silent(own, join):
    """It has seen no progress for longer than devices have for it."""
    owner = own()
    agent = join(owner)
    out = np.zeros(BYTES, "uint8")
    agent.read(owner.handle, out[:MIB])
    stop = f"sleep 0.3; kill -STOP {os.getpid()}; sleep 5; kill -CONT {os.getpid()}"
    with subprocess.Popen(["sh", "-c", stop]) as stopper:
        while stopper.poll() is None:
            agent.read(owner.handle, out)
    assert (out == PATTERN).all()
    assert agent.stats()["by"]["tcp"] == 0


def test_an_owner_that_is_killed_in_the_middle_is_lost(own, join):
    owner = own()
    agent = join(owner)
    out = np.zeros(BYTES, "uint8")
    agent.read(owner.handle, out[:MIB])
    killer = threading.Timer(0.1, owner.process.kill)
    killer.start()
    begin = time.monotonic()
    with pytest.raises(ringcoll.PeerLost):
        for _ in range(20):
            agent.read(owner.handle, out)
    assert time.monotonic() - begin < 10


def test_another_holder_goes_on_where_one_is_killed(own, join):
    owners = [own("one"), own("two")]
    agent = join(owners[0])
    out = np.zeros(BYTES, "uint8")
    for owner in owners:
        agent.read(owner.handle, out[:MIB])
    killer = threading.Timer(0.1, owners[0].process.kill)
    killer.start()
    agent.transfer([remote.Read(out, [owner.handle for owner in owners])])
    killer.join()
    assert (out == PATTERN).all()
    out[:] = 0
    agent.transfer([remote.Read(out, [owner.handle for owner in owners])])
    assert (out == PATTERN).all()
    assert agent.stats()["by"]["rdma"] > BYTES
