"""Stores of real processes on two hosts, of which some are killed, stopped and started again."""

from __future__ import annotations

import random
import signal
import time

import numpy
import pytest
from members import SIZE, Failed, await_copies, door_of, expect, publish, sums_of

import ringcoll


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("who", ["leader", "replica"])
def test_readers_go_on_within_two_seconds(start_member, stop, who):
    leader = start_member("found", "w", "a")
    replica = start_member("join", leader.address, "b")
    third = start_member("join", leader.address, "c")
    reader = start_member("visit", leader.address, "d")
    seeds = {f"layer.{i}": i for i in range(8)}
    version = publish(leader, seeds)
    expect(reader, version, seeds, within=5)
    {"leader": leader, "replica": replica}[who].signal(stop)
    # The machine may be busy: what counts is that nobody waits for a deadline of tens of seconds.
    expect(reader, version, seeds, within=4)
    expect(third, version, seeds, within=4)


def test_nothing_committed_is_lost_with_its_writer(start_member):
    writer = start_member("found", "w", "a")
    other = start_member("join", writer.address, "b")
    seeds = {"x": 1, "y": 2}
    version = publish(writer, seeds)
    writer.kill()
    expect(other, version, seeds, within=5)
    assert publish(other, {"x": 3}) == version + 1
    expect(other, version + 1, {"x": 3, "y": 2}, within=5)


def test_a_joiner_is_filled_while_all_goes_on(start_member):
    first = start_member("found", "w", "a")
    second = start_member("join", first.address, "b")
    seeds = {f"layer.{i}": i for i in range(4)}
    version = publish(first, seeds)
    await_copies(first, 2, holders=2)
    second.kill()
    third = start_member("join", first.address, "c")
    await_copies(first, 2, holders=2)
    first.kill()
    expect(third, version, seeds, within=5)


@pytest.mark.parametrize("seed", range(3))
def test_holders_killed_at_any_moment_of_a_commit(start_member, seed):
    """In each round a member is killed while the writer commits, and another one comes. A commit
    that has returned is read by all; one that has not is read as a whole or not at all."""
    chance = random.Random(seed)
    members = [start_member("found", "w", "a")]
    members += [start_member("join", members[0].address, host) for host in "bc"]
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
                assert error.kind in ("PeerLost", "Timeout"), error
        reader = chance.choice(members)
        try:
            _, sums, _ = reader.ask("sums")
        except Failed:
            assert not committed
            sums = {}
        new, old = sums_of(committed | seeds), sums_of(committed)
        assert sums in ([new] if done else [new, old]), f"round {round_}"
        if sums == new:
            committed |= seeds
        if committed:
            await_copies(reader, 2, holders=len(members))
        members.append(start_member("join", door_of(reader), "abc"[round_ % 3]))


def test_a_holder_that_stops_before_its_delta_was_read(start_member, monkeypatch):
    """The tensor is read as a whole from the other holder, long before the deadline."""
    holders = [start_member("found", "w", "a")]
    holders.append(start_member("join", holders[0].address, "b"))
    await_copies(holders[0], 1, holders=2)
    by_id = {member.ask("info")["this"]["id"]: member for member in holders}
    x = numpy.zeros(SIZE, "float32")
    monkeypatch.setenv("RINGCOLL_HOSTID", "c")
    with (
        ringcoll.connect(holders[0].address, "key") as guest,
        ringcoll.Store("w", guest) as store,
    ):
        for value in (0, 1):
            x[0] = value
            store.put("x", x)
            store.commit()
        asked = []
        original = store._session.ask

        def ask(holder, body, timeout):
            answer = original(holder, body, timeout)
            asked.append(holder)
            by_id[holder].signal(signal.SIGSTOP)
            return answer

        monkeypatch.setattr(store._session, "ask", ask)
        out = {"x": numpy.zeros_like(x)}
        begin = time.monotonic()
        store.get_state_dict(out=out, version=2, since=1)
        assert len(asked) == 1
        assert time.monotonic() - begin < 20
        assert (out["x"] == x).all()
