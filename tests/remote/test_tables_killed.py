"""Tables whose servers are killed while clients push: nothing acknowledged is lost, and nothing is
applied twice."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from table_members import IDS, Adding, Member, await_progress, is_doubled, wait_until

QUICK_S = 6.0  # a push that meets a lost server; the store notices that within 2 s
COLUMNS = 12


def push_to_all(member: Member, column: int, folder: Path) -> list[Adding]:
    return [
        Adding(member, "rows", column, folder, is_sparse=True),
        Adding(member, "all", column, folder, is_sparse=False),
    ]


def make_tables(member: Member) -> None:
    member.ask("table", name="rows", row_shape=[COLUMNS], shards=6)
    member.ask("table", name="all", shape=[4000, COLUMNS], shards=3)


@pytest.mark.parametrize("seed", range(3))
def test_servers_that_are_killed_again_and_again(
    member: Callable[..., Member], tmp_path: Path, seed: int
) -> None:
    draw = random.Random(seed)
    servers = [member("found", "w", 1)]
    servers += [member("join", servers[0].address) for _ in range(2)]
    make_tables(servers[0])
    clients = [member("visit", servers[0].address) for _ in range(2)]
    pushed: list[Adding] = []
    for column, each in enumerate([*clients, *servers]):
        for name in ("rows", "all"):
            each.ask("find", name=name)
        pushed += push_to_all(each, column, tmp_path)
    for column in range(5, 8):
        wait_until(lambda: is_doubled(servers[-1]))
        # The first one that is killed leads the store.
        victim = servers.pop(0 if column == 5 else draw.randrange(len(servers)))
        victim.kill()
        joined = member("join", servers[0].address)
        servers.append(joined)
        for name in ("rows", "all"):
            joined.ask("find", name=name)
        pushed += push_to_all(joined, column, tmp_path)
        await_progress(pushed[:4])
    living = [*clients, *servers]
    for each in living:
        for slowest, error in each.ask("end"):
            assert error == ""
            assert slowest < QUICK_S
    for reader in living:
        rows = reader.ask("pull", name="rows", ids=IDS)
        everything = reader.ask("pull", name="all")
        for each in pushed:
            each.check(rows if each.table == "rows" else everything)


def test_holders_that_are_killed_while_they_are_filled(
    member: Callable[..., Member], tmp_path: Path
) -> None:
    draw = random.Random(1)
    servers = [member("found", "w", 1)]
    servers.append(member("join", servers[0].address))
    make_tables(servers[0])
    # Rows that take a while to be sent.
    servers[0].ask("table", name="many", row_shape=[256], shards=4)
    fill = "me.tables['many'].push(numpy.arange({0}), numpy.ones(({0}, 256), 'float32'))"
    servers[0].run(fill.format(20_000))
    clients = [member("visit", each.address) for each in servers]
    pushed: list[Adding] = []
    for column, client in enumerate(clients):
        for name in ("rows", "all"):
            client.ask("find", name=name)
        pushed += push_to_all(client, column, tmp_path)
    for _ in range(5):
        joined = member("join", servers[0].address)
        time.sleep(draw.uniform(0, 0.4))
        joined.kill()
    await_progress(pushed)
    for client in clients:
        for slowest, error in client.ask("end"):
            assert error == ""
            assert slowest < QUICK_S
    wait_until(lambda: is_doubled(servers[1]))
    servers[0].kill()
    for each in pushed:
        each.check(clients[1].ask("pull", name=each.table, ids=IDS if each.is_sparse else None))
    clients[1].ask("find", name="many")
    pull = "result = me.tables['many'].pull(numpy.arange(20_000)).sum()"
    assert clients[1].run(f"{pull}.item()") == 20_000 * 256
