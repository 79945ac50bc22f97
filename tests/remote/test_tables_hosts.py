"""Tables on hosts of which one is cut off for a while. The hosts are network namespaces."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.hosts import Cluster, Network
from table_members import IDS, Adding, Failed, Member, all_say, await_progress, wait_until

HOLDERS = """
tables = me.store._control.node.replica.catalog.tables.records.values()
result = [s["holders"] for t in tables for s in t["shards"]]
"""

# Who has what, for the message of a test that fails.
SHARDS = """
import json
serving = me.store._control.tables._serving
result = [me.store._control.me]
result += [[s[k] for k in ("shard", "role", "epoch", "pushes")]
           for s in json.loads(serving._server.stats())["shards"]]
result += me.store._control.node.replica.catalog.tables.records["rows"]["shards"]
"""


def cut(cluster: Cluster, host: int) -> None:
    cluster.head.configure("ip", [f"link set dev n0-h{host + 1} nomaster"])


def mend(cluster: Cluster, host: int) -> None:
    cluster.head.configure("ip", [f"link set dev n0-h{host + 1} master eth0"])


def are_apart(member: Member) -> bool:
    """Whether each shard has holders on two hosts."""
    info = member.ask("store_info")
    host_of = {holder: each["host"] for holder, each in info["holders"].items()}
    return all(
        len(holders) == 2 and len({host_of.get(holder) for holder in holders}) == 2
        for holders in member.run(HOLDERS)
    )


@pytest.mark.parametrize(
    ("places", "victim"), [((0, 0, 1, 1, 2), 0), ((0, 0, 1, 1, 2), 1), ((0, 0, 1, 1), 1)]
)
def test_a_host_that_is_cut_off_for_three_seconds(
    emulate: Callable[..., Cluster],
    members: Callable[..., list[Member]],
    tmp_path: Path,
    places: tuple[int, ...],
    victim: int,
) -> None:
    """The first rank leads the store. Of three hosts, two go on, and each shard has a copy there.
    Of two hosts, neither has more than half of the holders."""
    cluster = emulate(1 + max(places), [Network()])
    ranks = members(len(places), replicas=1, hosts=[cluster.hosts[place] for place in places])
    all_say(ranks, "table", name="rows", row_shape=[8], shards=8)
    assert are_apart(ranks[0])
    pushed = [Adding(each, "rows", i, tmp_path, is_sparse=True) for i, each in enumerate(ranks)]

    await_progress(pushed)
    cut(cluster, victim)
    end = time.monotonic() + 3
    if max(places) > 1:
        time.sleep(1.0)
        await_progress([pushed[i] for i, place in enumerate(places) if place != victim])
    time.sleep(max(0.0, end - time.monotonic()))
    mend(cluster, victim)
    await_progress(pushed)
    for each in ranks:
        for _, error in each.ask("end"):
            assert error == ""
    for each in ranks:
        rows = each.ask("pull", name="rows", ids=IDS)
        assert len(rows) == 1, (ranks.index(each), rows, [rank.run(SHARDS) for rank in ranks])
        for what in pushed:
            what.check(rows)
    assert all(what.begun == what.acknowledged for what in pushed)
    wait_until(lambda: are_apart(ranks[-1]))


def test_who_is_cut_off_with_a_primary_is_shown_nothing_old(
    emulate: Callable[..., Cluster], members: Callable[..., list[Member]], tmp_path: Path
) -> None:
    """It could still ask its own server, which another one has replaced."""
    cluster = emulate(3, [Network()])
    ranks = members(3, replicas=1, hosts=cluster.hosts)
    names = ["a", "b", "c"]
    for name in names:
        all_say(ranks, "table", name=name, row_shape=[8], shards=1)
    me = ranks[1].run("result = me.store._control.me")
    holders = ranks[1].run(HOLDERS)
    name = next(n for n, each in zip(names, holders, strict=True) if each[0] == me)
    pushed = Adding(ranks[0], name, 0, tmp_path, is_sparse=True)
    await_progress([pushed])
    cut(cluster, 1)
    await_progress([pushed], 5)  # another server has taken over
    acknowledged = pushed.acknowledged
    ranks[1].say("pull", name=name, ids=IDS)
    time.sleep(0.5)
    mend(cluster, 1)
    ((count, *_),) = ranks[1].answer()
    assert count >= acknowledged


ROUNDS = """
table = me.tables["clocks"]
for _ in range({steps}):
    table.push([table.clock], numpy.ones((1, 8), "float32"))
    table.tick()
    table.pull([0])
result = table.clock
"""


def test_a_rank_whose_host_is_gone_counts_no_more(
    emulate: Callable[..., Cluster], members: Callable[..., list[Member]]
) -> None:
    """Nobody can say that it has ended: it is not heard."""
    cluster = emulate(3, [Network()])
    ranks = members(3, replicas=1, hosts=cluster.hosts)
    all_say(ranks, "run", text="import ringcoll.tables.serving as it\nit._SILENT_S = 2.0")
    all_say(ranks, "table", name="clocks", row_shape=[8], staleness=0)
    assert all_say(ranks, "run", text=ROUNDS.format(steps=3)) == [3, 3, 3]
    cut(cluster, 1)
    here = [ranks[0], ranks[2]]
    assert all_say(here, "run", text=ROUNDS.format(steps=3)) == [6, 6]
    mend(cluster, 1)

    def counts_no_more() -> bool:
        try:
            ranks[1].run(ROUNDS.format(steps=1))
        except Failed as error:
            return "must join first" in str(error)
        return False

    wait_until(counts_no_more)
    assert ranks[1].run("result = me.tables['clocks'].join()") == 6
    assert all_say(ranks, "run", text=ROUNDS.format(steps=2)) == [8, 8, 8]


def test_a_worker_that_leaves_since_it_is_cut_off(
    emulate: Callable[..., Cluster],
    members: Callable[..., list[Member]],
    member: Callable[..., Member],
    tmp_path: Path,
) -> None:
    """It comes back, and what it has pushed to a table without clocks is there once, though the
    answer to it was lost."""
    cluster = emulate(2, [Network()])
    (rank,) = members(1, hosts=[cluster.hosts[0]])
    rank.run("import ringcoll.tables.serving as it\nit._SILENT_S = 0.2")
    rank.ask("table", name="rows", row_shape=[8], shards=2)
    rank.ask("table", name="clocks", row_shape=[8], staleness=0)
    for number in range(4):
        guest = member("visit", rank.address, host=cluster.hosts[1])
        for name in ("rows", "clocks"):
            guest.ask("find", name=name)
        guest.run("me.tables['clocks'].join()")
        pushed = Adding(guest, "rows", number, tmp_path, is_sparse=True)
        await_progress([pushed], 50)
        cut(cluster, 1)
        wait_until(lambda: len(rank.ask("info", name="clocks")["workers"]) == 1)
        mend(cluster, 1)
        await_progress([pushed], 10)
        guest.ask("end")
        pushed.check(rank.ask("pull", name="rows", ids=IDS))
        assert pushed.begun == pushed.acknowledged
        guest.ask("close")
