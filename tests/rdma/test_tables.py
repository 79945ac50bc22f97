"""Parameter tables whose servers and clients are on hosts with RDMA."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from table_members import IDS, Adding, Member, await_progress, is_doubled, wait_until

pytestmark = pytest.mark.guest(cpus=2, timeout=300)

COPIED = "result = me.store._control.endpoint.agent.stats()['by']"
TRAIN = """
ids = numpy.arange(20_000)
values = numpy.ones((20_000, 64), "float32")
whole = numpy.ones(me.tables["all"].shape, "float32")
for _ in range(4):
    me.tables["rows"].push(ids, values)
    rows = me.tables["rows"].pull(ids)
    out = me.tables["all"].push_pull(None, whole)
result = [float(rows.min()), float(rows.max()), float(out.min()), float(out.max())]
"""


@pytest.fixture
def member() -> Iterator[Callable[..., Member]]:
    """``member("found", "w", 0, host="one")``: a process as on a host of its own, so that nobody
    maps its memory."""
    members: list[Member] = []

    def start(*words: object, host: str, **knobs: str) -> Member:
        members.append(Member(*words, HOSTID=host, **knobs))
        return members[-1].arrive()

    yield start
    for each in members:
        each.close()


def test_values_are_read_and_written_by_the_device(member: Any, device: Any) -> None:
    server = member("found", "w", 0, host="one")
    server.ask("table", name="rows", row_shape=[64])
    server.ask("table", name="all", shape=[1 << 22])
    client = member("visit", server.address, host="two")
    for name in ("rows", "all"):
        client.ask("find", name=name)
    with device.counting() as moved:
        assert client.run(TRAIN) == [4, 4, 4, 4]
    sent = 4 * 2 * (20_000 * 64 * 4 + (4 << 22))  # rounds, there and back
    assert device.packets_sent(moved) >= sent / 4096
    copied = server.run(COPIED)
    assert copied["rdma"] >= sent and copied["tcp"] < 0.01 * sent


def test_without_rdma_the_same_goes_over_tcp(member: Any) -> None:
    server = member("found", "w", 0, host="one", TRANSPORT="tcp")
    server.ask("table", name="rows", row_shape=[64])
    server.ask("table", name="all", shape=[1 << 20])
    client = member("visit", server.address, host="two", TRANSPORT="tcp")
    for name in ("rows", "all"):
        client.ask("find", name=name)
    assert client.run(TRAIN) == [4, 4, 4, 4]
    assert server.run(COPIED)["rdma"] == 0


def test_a_server_that_is_killed(member: Any, tmp_path: Path) -> None:
    """What was acknowledged is on another server, and clients go on there."""
    servers = [member("found", "w", 1, host="one")]
    servers += [member("join", servers[0].address, host=name) for name in ("two", "three")]
    servers[0].ask("table", name="rows", row_shape=[8], shards=6)
    clients = [member("visit", servers[0].address, host="four")]
    pushed = []
    for column, each in enumerate([*clients, *servers[1:]]):
        each.ask("find", name="rows")
        pushed.append(Adding(each, "rows", column, tmp_path, is_sparse=True))
    wait_until(lambda: is_doubled(servers[1]))
    await_progress(pushed, 20)
    servers[0].kill()
    await_progress(pushed, 20)
    for each in [*clients, *servers[1:]]:
        assert [error for _, error in each.ask("end")] == [""]
    (row,) = clients[0].ask("pull", name="rows", ids=IDS)
    for what in pushed:
        what.check([row])
