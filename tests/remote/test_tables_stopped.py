"""Tables whose servers and clients are stopped for a while, and go on."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from table_members import IDS, Adding, Failed, Member, await_progress, is_doubled, wait_until
from test_tables_killed import make_tables, push_to_all


def begin_pushes(
    member: Callable[..., Member], folder: Path
) -> tuple[list[Member], list[Member], list[Adding]]:
    """Three servers, two clients, and what clients and servers push."""
    servers = [member("found", "w", 1)]
    servers += [member("join", servers[0].address) for _ in range(2)]
    make_tables(servers[0])
    clients = [member("visit", servers[0].address) for _ in range(2)]
    pushed: list[Adding] = []
    for column, each in enumerate([*clients, *servers]):
        for name in ("rows", "all"):
            each.ask("find", name=name)
        pushed += push_to_all(each, column, folder)
    wait_until(lambda: is_doubled(servers[0]))
    return servers, clients, pushed


def end_pushes(members: list[Member], pushed: list[Adding]) -> None:
    """All have ended, and everybody finds the same."""
    for each in members:
        for _, error in each.ask("end"):
            assert error == ""
    for each in members:
        for what in pushed:
            what.check(each.ask("pull", name=what.table, ids=IDS if what.is_sparse else None))
    for what in pushed:
        assert what.begun == what.acknowledged


@pytest.mark.parametrize("seconds", [1, 5, 6])
@pytest.mark.parametrize("number", [0, 1])
def test_a_stopped_server(
    member: Callable[..., Member], tmp_path: Path, number: int, seconds: float
) -> None:
    """The first one leads the store."""
    servers, clients, pushed = begin_pushes(member, tmp_path)
    others = [each for each in pushed if each.column != 2 + number]
    servers[number].signal(signal.SIGSTOP)
    end = time.monotonic() + seconds
    if seconds > 5:
        await_progress(others)
    time.sleep(max(0.0, end - time.monotonic()))
    servers[number].signal(signal.SIGCONT)
    await_progress(pushed)
    wait_until(lambda: is_doubled(servers[2]))
    end_pushes([*clients, *servers], pushed)


@pytest.mark.parametrize("seconds", [1, 6])
def test_a_stopped_client(member: Callable[..., Member], tmp_path: Path, seconds: float) -> None:
    servers, clients, pushed = begin_pushes(member, tmp_path)
    others = [each for each in pushed if each.column != 0]
    clients[0].signal(signal.SIGSTOP)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        await_progress(others)
    clients[0].signal(signal.SIGCONT)
    await_progress(pushed)
    end_pushes([*clients, *servers], pushed)


def test_a_guest_that_was_silent_for_long(
    member: Callable[..., Member], members: Callable[..., list[Member]], tmp_path: Path
) -> None:
    """It is no worker any more, and what it has pushed to other tables is there once."""
    (rank,) = members(1)
    rank.run("import ringcoll.tables.serving as it\nit._SILENT_S = 0.5")
    make_tables(rank)
    rank.ask("table", name="clocks", row_shape=[2], staleness=0)
    guest = member("visit", rank.address)
    for name in ("rows", "all", "clocks"):
        guest.ask("find", name=name)
    guest.run("me.tables['clocks'].join()")
    pushed = push_to_all(guest, 0, tmp_path)
    await_progress(pushed)
    guest.signal(signal.SIGSTOP)
    wait_until(lambda: len(rank.ask("info", name="clocks")["workers"]) == 1)
    guest.signal(signal.SIGCONT)
    await_progress(pushed)
    end_pushes([guest], pushed)
    with pytest.raises(Failed, match="no worker"):
        guest.run("me.tables['clocks'].push([1], numpy.ones((1, 2), 'float32'))")


DOWNS = """
import ringcoll.weights.endpoint as it
told, downs = it.Endpoint._tell_down, []
me.downs = downs
it.Endpoint._tell_down = lambda self, *how: (downs.append(how), told(self, *how))
"""


def test_nobody_is_taken_for_silent_after_a_stop_of_all(member: Callable[..., Member]) -> None:
    """As when a machine sleeps. Before the stop they have said nothing for various times."""
    server = member("found", "w", 0)
    server.ask("table", name="t", row_shape=[2])
    clients = [member("visit", server.address) for _ in range(4)]
    everybody = [server, *clients]
    for client in clients:
        client.ask("find", name="t")
        client.ask("push", name="t", ids=[1], values=[[1, 1]])
        time.sleep(0.1)
    for each in everybody:
        each.run(DOWNS)
    for each in everybody:
        each.signal(signal.SIGSTOP)
    time.sleep(3.0)
    for each in everybody:
        each.signal(signal.SIGCONT)
    time.sleep(1.0)
    for each in everybody:
        assert each.run("result = me.downs") == []
