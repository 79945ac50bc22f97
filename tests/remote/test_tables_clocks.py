"""Workers of unequal speed and their clocks: who sees which pushes, and what rules make of them."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

import numpy
import pytest
from table_members import Failed, Member, all_say, is_doubled, wait_until

STEPS = 30

# Each worker adds 1 to its own row in each of its clocks, and notes what it pulls before.
WORK = """
table, seen = me.tables["t"], []
values = numpy.ones((1, 2), "float32")
for step in range({steps}):
    clock = table.clock
    seen.append([clock, table.pull({rows})[:, 0].tolist()])
    time.sleep({pause})
    table.push([{row}], values)
    table.tick()
result = seen
"""


def work(members: list[Member], steps: int, rows: list[int]) -> list[Any]:
    """What each worker has seen at the beginning of each of its clocks. Later ones are slower."""
    for row, each in enumerate(members):
        each.say("run", text=WORK.format(steps=steps, rows=rows, row=row, pause=0.004 * row))
    return [each.answer() for each in members]


@pytest.mark.parametrize("staleness", [0, 2])
@pytest.mark.parametrize("replicas", [0, 1])
def test_no_pull_is_further_behind(
    members: Callable[..., list[Member]], staleness: int, replicas: int
) -> None:
    ranks = members(3, replicas=replicas)
    assert (
        all_say(ranks, "table", name="t", row_shape=[2], staleness=staleness, shards=5) == [0] * 3
    )
    ahead = 0
    for row, seen in enumerate(work(ranks, STEPS, [0, 1, 2])):
        assert [clock for clock, _ in seen] == list(range(STEPS))
        for clock, counts in seen:
            for count in counts:
                assert count >= clock - staleness, (row, clock, counts)
                if staleness == 0:
                    assert count == clock
                # What another one has not finished is not there.
                assert count <= clock + staleness + 1
                ahead = max(ahead, int(clock - count))
    assert ahead <= staleness


ADD = """
table = me.tables["{name}"]
draw = numpy.random.default_rng({rank})
seen = []
for step in range({steps}):
    values = draw.standard_normal({shape}).astype("float32")
    time.sleep({pause})
    table.push({ids}, values)
    table.tick()
    seen.append(table.pull({ids}).tolist())
result = seen
"""


@pytest.mark.parametrize("is_sparse", [True, False])
def test_a_clock_is_an_allreduce_and_one_step(
    members: Callable[..., list[Member]], is_sparse: bool
) -> None:
    """Sums in the order of ranks, bit for bit; then the rule's one step."""
    ranks = members(3, replicas=1)
    described = {"row_shape": [3]} if is_sparse else {"shape": [4, 3]}
    ids = [5, -9, 1 << 40, 7] if is_sparse else None
    for rule in ("sum", "sgd", "adam"):
        all_say(ranks, "table", name=rule, rule=rule, staleness=0, **described)
        # The same steps in a table of one client, which pushes the sums.
        ranks[0].ask("table", name="one-" + rule, rule=rule, **described)
        for rank, each in enumerate(ranks):
            text = ADD.format(
                name=rule, rank=rank, steps=8, ids=ids, shape=(4, 3), pause=0.003 * (3 - rank)
            )
            each.say("run", text=text)
        seen = [each.answer() for each in ranks]
        draws = [numpy.random.default_rng(rank) for rank in range(3)]
        assert seen[0] == seen[1] == seen[2]
        value = numpy.zeros((4, 3), "float32")
        for step in range(8):
            first, second, third = (d.standard_normal((4, 3)).astype("float32") for d in draws)
            total = (first + second) + third
            ranks[0].ask("push", name="one-" + rule, ids=ids, values=total.tolist())
            expected = ranks[0].ask(
                "run", text=f"result = me.tables['one-{rule}'].pull({ids}).tolist()"
            )
            assert seen[0][step] == expected
            if rule == "sum":
                value = value + total
                assert (numpy.float32(expected) == value).all()


ROUNDS = """
table = me.tables["t"]
for step in range({steps}):
    table.pull([0])
    table.push([{row}], numpy.ones((1, 2), "float32"))
    table.tick()
result = table.clock
"""


@pytest.mark.parametrize("leads", [True, False])
def test_a_worker_that_is_killed_counts_no_more(
    members: Callable[..., list[Member]], leads: bool
) -> None:
    ranks = members(3, replicas=1)
    all_say(ranks, "table", name="t", row_shape=[2], staleness=0)
    for row, each in enumerate(ranks):
        each.say("run", text=ROUNDS.format(steps=5, row=row))
    assert [each.answer() for each in ranks] == [5, 5, 5]
    victim = ranks.pop(0 if leads else 2)
    for row, each in enumerate(ranks):
        each.say("run", text=ROUNDS.format(steps=10, row=10 + row))
    time.sleep(0.2)  # they wait for the victim
    victim.kill()
    assert [each.answer() for each in ranks] == [15, 15]
    assert [row[0] for row in ranks[0].run(PULL.format([0, 1, 2, 10, 11]))] == [5, 5, 5, 10, 10]
    wait_until(lambda: len(ranks[0].ask("info", name="t")["workers"]) == 2)


PULL = "result = me.tables['t'].pull({}).tolist()"


def test_a_guest_that_joins_and_is_killed(
    member: Callable[..., Member], members: Callable[..., list[Member]]
) -> None:
    ranks = members(2, replicas=1)
    all_say(ranks, "table", name="t", row_shape=[2], staleness=0)
    guest = member("visit", ranks[0].address)
    guest.ask("find", name="t")
    assert guest.run("result = me.tables['t'].clock") is None
    for row, each in enumerate(ranks):
        each.say("run", text=ROUNDS.format(steps=4, row=row))
    assert [each.answer() for each in ranks] == [4, 4]
    assert guest.run("result = me.tables['t'].join()") == 4
    everybody = [*ranks, guest]
    for row, each in enumerate(everybody):
        each.say("run", text=ROUNDS.format(steps=4, row=row))
    assert [each.answer() for each in everybody] == [8, 8, 8]
    assert [row[0] for row in guest.run(PULL.format([0, 1, 2]))] == [8, 8, 4]
    for row, each in enumerate(ranks):
        each.say("run", text=ROUNDS.format(steps=4, row=row))
    time.sleep(0.2)  # they wait for the guest
    guest.kill()
    assert [each.answer() for each in ranks] == [12, 12]
    assert [row[0] for row in ranks[0].run(PULL.format([0, 1, 2]))] == [12, 12, 4]


SILENT = "import ringcoll.tables.serving as it\nit._SILENT_S = 3.0"


def test_a_guest_that_stays_silent_counts_no_more(
    member: Callable[..., Member], members: Callable[..., list[Member]]
) -> None:
    ranks = members(2, replicas=1)
    all_say(ranks, "run", text=SILENT)
    all_say(ranks, "table", name="t", row_shape=[2], staleness=0)
    guest = member("visit", ranks[0].address)
    guest.ask("find", name="t")
    assert guest.run("result = me.tables['t'].join()") == 0
    assert guest.run("result = me.tables['t'].join()") == 0
    guest.signal(signal.SIGSTOP)
    for row, each in enumerate(ranks):
        each.say("run", text=ROUNDS.format(steps=2, row=row))
    assert [each.answer() for each in ranks] == [2, 2]
    guest.signal(signal.SIGCONT)
    with pytest.raises(Failed, match="must join first"):
        guest.run(ROUNDS.format(steps=1, row=2))
    assert guest.run("result = me.tables['t'].join()") == 2
    everybody = [*ranks, guest]
    for row, each in enumerate(everybody):
        each.say("run", text=ROUNDS.format(steps=2, row=row))
    assert [each.answer() for each in everybody] == [4, 4, 4]
    assert [row[0] for row in guest.run(PULL.format([0, 1, 2]))] == [4, 4, 2]


def test_a_guest_that_was_stopped_is_a_worker_still(
    member: Callable[..., Member], members: Callable[..., list[Member]]
) -> None:
    ranks = members(2, replicas=1)
    all_say(ranks, "run", text=SILENT)
    all_say(ranks, "table", name="t", row_shape=[2], staleness=0)
    guest = member("visit", ranks[0].address)
    guest.ask("find", name="t")
    assert guest.run("result = me.tables['t'].join()") == 0
    guest.signal(signal.SIGSTOP)
    time.sleep(4)
    guest.signal(signal.SIGCONT)
    for row, each in enumerate([*ranks, guest]):
        each.say("run", text=ROUNDS.format(steps=2, row=row))
    assert [each.answer() for each in [*ranks, guest]] == [2, 2, 2]
    time.sleep(5)  # longer than a silent guest stays
    for row, each in enumerate([*ranks, guest]):
        each.say("run", text=ROUNDS.format(steps=2, row=row))
    assert [each.answer() for each in [*ranks, guest]] == [4, 4, 4]
    assert [row[0] for row in ranks[0].run(PULL.format([0, 1, 2]))] == [4, 4, 4]


def test_a_pull_that_waits_for_a_clock_ends_with_its_table(
    members: Callable[..., list[Member]],
) -> None:
    ranks = members(2)
    all_say(ranks, "table", name="t", row_shape=[2], staleness=0, shards=1)
    ranks[0].run("me.tables['t'].tick()\nme.waits = me.tables['t'].pull_async([1])")
    ranks[1].run("me.store.drop_table('t')")
    with pytest.raises(Failed) as ended:
        ranks[0].run("me.waits.wait(40)")
    assert ended.value.kind == "Gone"


def test_a_quorum_goes_on_without_the_others(members: Callable[..., list[Member]]) -> None:
    ranks = members(3, replicas=1)
    all_say(ranks, "table", name="t", row_shape=[2], staleness=0, quorum=2, grace_s=0.3, shards=2)
    begin = time.monotonic()
    for row, each in enumerate(ranks[:2]):
        each.say("run", text=ROUNDS.format(steps=4, row=row))
    assert [each.answer() for each in ranks[:2]] == [4, 4]
    # Each of the last three pulls has waited for the clock before.
    assert time.monotonic() - begin > 3 * 0.3
    # What the third one pushes to clocks that are over is late, and does not count.
    ranks[2].ask("push", name="t", ids=[2], values=[[1, 1]])
    wait_until(lambda: ranks[0].ask("info", name="t")["clock"] == 4)
    assert [row[0] for row in ranks[0].run(PULL.format([0, 1, 2]))] == [4, 4, 0]
    assert ranks[0].ask("info", name="t")["late"] == 1


ALL_ROWS = """
table, seen = me.tables["t"], set()
rows = numpy.arange(24)
for step in range({steps}):
    clock = table.clock
    seen |= {{count - clock for count in numpy.unique(table.pull(rows)).tolist()}}
    table.push(rows, numpy.eye(3, dtype="float32")[[{column}] * 24])
    table.tick()
result = sorted(seen)
"""


def await_servers(member: Member, count: int) -> None:
    wait_until(lambda: len(member.ask("info", name="t")["servers"]) == count)


def test_clocks_go_on_while_servers_come_and_are_killed(
    member: Callable[..., Member], members: Callable[..., list[Member]]
) -> None:
    """With staleness 0 each pull has the pushes of all clocks before, and no others, whatever
    server has taken over a shard meanwhile."""
    ranks = members(3, replicas=1)
    all_say(ranks, "table", name="t", row_shape=[3], staleness=0, shards=6)
    for _ in range(3):
        for column, each in enumerate(ranks):
            each.say("run", text=ALL_ROWS.format(steps=600, column=column))
        server = member("join", ranks[0].address)
        server.ask("find", name="t")
        await_servers(server, 4)
        server.kill()
        assert [each.answer() for each in ranks] == [[0]] * 3
        wait_until(lambda: is_doubled(ranks[0]))
    assert ranks[1].run("result = numpy.unique(me.tables['t'].pull(range(24))).tolist()") == [1800]
