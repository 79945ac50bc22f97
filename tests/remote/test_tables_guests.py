"""Many guests that come and go leave nothing behind in a server."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest
from table_members import Member, wait_until

PUSH_AND_GO = """
for _ in range({count}):
    guest = ringcoll.connect({address!r}, "key")
    store = ringcoll.Store("w", guest)
    store.table("t").push([1, 2], numpy.ones((2, 64), "float32"))
    store.table("clocks").join()
    store.close()
    guest.close()
"""
PUSH_AND_DIE = """
import os
for _ in range({count}):
    child = os.fork()
    if child == 0:
        try:
            guest = ringcoll.connect({address!r}, "key")
            store = ringcoll.Store("w", guest)
            store.table("t").push([1, 2], numpy.ones((2, 64), "float32"))
            store.table("clocks").join()
        except BaseException as error:
            os.write(2, repr(error).encode())
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""
STATS = """
import json
result = json.loads(me.store._control.tables._serving._server.stats())["clients"]
"""


def usage(server: Member) -> dict[str, Any]:
    return server.ask("usage") | {"lines": server.run(STATS)}


@pytest.mark.parametrize("how", [PUSH_AND_GO, PUSH_AND_DIE])
def test_guests_leave_nothing_behind(member: Callable[..., Member], how: str) -> None:
    server = member("found", "w", 0)
    server.ask("table", name="t", row_shape=[64])
    server.ask("table", name="clocks", row_shape=[2], staleness=0)
    server.ask("pull", name="t", ids=[1])
    server.run("me.tables['clocks'].pull([1])")
    own = usage(server)["lines"]
    workers = server.ask("info", name="clocks")["workers"]
    host = member("visit", server.address)

    def come(count: int) -> dict[str, Any]:
        host.run(how.format(count=count, address=server.address))
        # One whose port another process has now counts as silent, for 30 s.
        wait_until(lambda: usage(server)["lines"] == own, 90)
        wait_until(lambda: server.ask("info", name="clocks")["workers"] == workers)
        return usage(server)

    before = come(10)
    after = come(100)
    wait_until(lambda: usage(server)["threads"] <= before["threads"])
    wait_until(lambda: usage(server)["files"] <= before["files"] + 2)
    assert after["regions"] <= before["regions"]
    assert after["bytes"] - before["bytes"] < 100 * 20_000
    server.ask("find", name="t")
    assert server.ask("pull", name="t", ids=[1, 2]) == [[110.0] * 64]


def test_lines_of_guests_that_are_not_heard(member: Callable[..., Member]) -> None:
    server = member("found", "w", 0)
    server.run("import ringcoll.tables.serving as it\nit._SILENT_S = 1.0")
    server.ask("table", name="t", row_shape=[2])
    server.ask("pull", name="t", ids=[1])
    own = usage(server)["lines"]
    guests = [member("visit", server.address) for _ in range(3)]
    for guest in guests:
        guest.ask("find", name="t")
        guest.ask("push", name="t", ids=[1], values=[[1, 1]])
    assert usage(server)["lines"] == own + 3
    for guest in guests:
        guest.signal(signal.SIGSTOP)
    wait_until(lambda: usage(server)["lines"] == own)
    for guest in guests:
        guest.signal(signal.SIGCONT)
        guest.ask("push", name="t", ids=[1], values=[[1, 1]])
    assert server.ask("pull", name="t", ids=[1]) == [[6, 6]]
