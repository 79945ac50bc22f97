"""Tables in versions of their store: saved by a commit, and made again of a file."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
from table_members import Failed, Member, all_say, wait_until

MAKE = """
import numpy
rng = numpy.random.default_rng(3)
me.ids = rng.integers(-(10**12), 10**12, 500)
me.rows = rng.standard_normal((500, 8)).astype("float32")
me.tensor = rng.standard_normal((50_003, 3)).astype("float32")
me.tables["e"] = me.store.table("e", row_shape=8, rule=ringcoll.rules.Adam(lr=0.1))
me.tables["d"] = me.store.table("d", (50_003, 3), rule=ringcoll.rules.SGD(lr=0.1, momentum=0.9))
"""
PUSH = """
me.tables["e"].push(me.ids, me.rows)
me.tables["d"].push(None, me.tensor)
"""
DIGEST = """
import hashlib
values = me.tables["e"].pull(me.ids).tobytes() + me.tables["d"].pull().tobytes()
result = hashlib.sha256(values).hexdigest()
"""


def test_a_table_goes_on_bit_for_bit_on_other_servers(
    members: Callable[..., list[Member]], tmp_path: Path
) -> None:
    ranks = members(2, replicas=0)
    all_say(ranks, "run", text=MAKE)
    for _ in range(3):
        ranks[0].run(PUSH)
    all_say(ranks, "run", text="me.store.commit({'step': 3})")
    file = tmp_path / "tables.safetensors"
    ranks[1].run(f"me.store.save({str(file)!r})")
    before = ranks[0].run(DIGEST)
    after = ranks[0].run(PUSH + DIGEST)
    for rank in ranks:
        rank.close()

    ranks = members(3, replicas=1)
    all_say(ranks, "run", text=f"me.store.restore({str(file)!r})")
    all_say(ranks, "run", text=MAKE)
    assert ranks[2].run(DIGEST) == before
    assert ranks[1].run(PUSH + DIGEST) == after
    assert len(ranks[0].run("result = me.tables['e'].info()['servers']")) == 3


def test_a_version_has_what_was_pushed_before_its_commit_and_nothing_else(
    members: Callable[..., list[Member]],
) -> None:
    ranks = members(3)
    all_say(ranks, "table", name="e", row_shape=2, shards=6)
    all_say(ranks, "table", name="d", shape=[40_000])
    more = """
e, d = me.tables["e"], me.tables["d"]
for _ in range(20):
    e.push_async(numpy.arange(30), numpy.ones((30, 2), "float32"))
    d.push_async(None, numpy.ones(40_000, "float32"))
"""
    for round in range(1, 4):
        found = all_say(ranks, "run", text=more + "result = me.store.commit()" + more)
        text = f"""
found = me.store.get_state_dict(version={found[0]}, prefix="tables/")
rows = [found[name] for name in found if name.startswith("tables/e/") and "values" in name]
result = [numpy.unique(numpy.concatenate(rows)).tolist(),
          numpy.unique(found["tables/d/values"]).tolist()]
"""
        expected = 3 * 20 * (2 * round - 1)
        assert ranks[0].run(text) == [[expected], [expected]]


def test_a_server_that_is_killed_does_not_end_a_commit(
    members: Callable[..., list[Member]], member: Callable[..., Member]
) -> None:
    ranks = members(2, replicas=1)
    server = member("join", ranks[0].address)
    all_say(ranks, "run", text=MAKE)
    wait = "servers = me.tables['e'].info()['servers']\nresult = len(servers)"
    while ranks[0].run(wait) < 3:
        pass
    ranks[0].run(PUSH)
    for rank in ranks:
        rank.say("run", text="result = me.store.commit()")
    server.kill()
    assert [rank.answer() for rank in ranks] == [1, 1]


KILL_BEFORE_READING = """
import os, signal
from ringcoll.tables import saving
read = saving.agents.read
def kill_and_read(*arguments):
    saving.agents.read = read
    os.kill({}, signal.SIGKILL)
    return read(*arguments)
saving.agents.read = kill_and_read
"""


def test_a_server_that_is_killed_before_its_copies_are_read_does_not_end_a_commit(
    members: Callable[..., list[Member]], member: Callable[..., Member]
) -> None:
    ranks = members(2, replicas=1)
    server = member("join", ranks[0].address, HOSTID="another")
    all_say(ranks, "run", text=MAKE)
    wait_until(lambda: len(ranks[0].ask("info", name="e")["servers"]) == 3)
    ranks[0].run(PUSH)
    before = ranks[1].run(DIGEST)
    ranks[0].run(KILL_BEFORE_READING.format(server.process.pid))
    all_say(ranks, "run", text="me.store.commit()")
    assert server.process.wait(5) == -signal.SIGKILL
    ranks[0].run("for name in ('e', 'd'):\n    me.store.drop_table(name)")
    all_say(ranks, "run", text=MAKE)
    assert ranks[1].run(DIGEST) == before


def test_a_table_that_has_lost_a_shard_begins_again_with_what_was_saved(
    member: Callable[..., Member],
) -> None:
    store = member("found", "w", 0)
    server = member("join", store.address)
    store.ask("table", name="t", row_shape=[2])
    wait_until(lambda: len(store.ask("info", name="t")["servers"]) == 2)
    ids = list(range(20))
    push = f"me.tables['t'].push({ids}, numpy.ones((20, 2), 'float32'))\n"
    store.run(push + "me.store.commit()\n" + push)
    server.kill()
    with pytest.raises(Failed, match=r"table 't': shard \d+ is lost.* drop_table\(\)") as lost:
        store.run("me.store.commit()")
    assert lost.value.kind == "Gone"
    store.run("me.store.drop_table('t')")
    store.ask("table", name="t", row_shape=[2])
    assert store.ask("pull", name="t", ids=ids) == [[1, 1]]
    assert store.run("result = me.store.commit()") == 2


@pytest.mark.parametrize(
    ("make", "text"),
    [
        ("me.store.table('e', row_shape=9)", "saved with values of float32"),
        ("me.store.table('e', row_shape=8, dtype='float64')", "made with float64"),
        ("me.store.table('e', row_shape=8, rule=ringcoll.rules.SGD(0.1))", "the rule adam"),
        ("me.store.table('d', 50_003)", r"made with float32 \[50003\]"),
        ("me.store.table('e', row_shape=8, rule=ringcoll.rules.Adam(), shards=3)", "shards=3"),
    ],
)
def test_a_table_that_was_saved_otherwise_is_refused(
    member: Callable[..., Member], make: str, text: str
) -> None:
    store = member("found", "w", 0)
    store.run(MAKE + PUSH + "me.store.commit()\nme.store.drop_table('e')\nme.store.drop_table('d')")
    with pytest.raises(Failed, match=text) as refused:
        store.run(make)
    assert refused.value.kind == "Mismatch"
    store.run(MAKE)


def test_shards_without_rows_are_saved(member: Callable[..., Member], tmp_path: Path) -> None:
    store = member("found", "w", 0)
    make = """
for name in ("few", "none"):
    me.tables[name] = me.store.table(name, row_shape=2, rule=ringcoll.rules.SGD(1.0, momentum=0.5),
                                     shards=8)
"""
    push = "me.tables['few'].push([1, 2], numpy.ones((2, 2), 'float32'))"
    result = "\nresult = [me.tables[name].pull([1, 2, 3]).tolist() for name in ('few', 'none')]"
    file = tmp_path / "tables.safetensors"
    store.run(make + push + f"\nme.store.commit()\nme.store.save({str(file)!r})")
    later = [[[-2.5] * 2, [-2.5] * 2, [0] * 2], [[0] * 2] * 3]
    assert store.run(push + result) == later
    for name in ("few", "none"):
        store.run(f"me.store.drop_table({name!r})")
    assert store.run(make + push + result) == later
    store.close()
    store = member("found", "w", 0)
    store.run(f"me.store.restore({str(file)!r})")
    assert store.run(make + push + result) == later
    assert store.ask("info", name="few")["shards"] == 8


def test_a_table_that_goes_on_with_another_rule_is_saved_with_that(
    member: Callable[..., Member],
) -> None:
    store = member("found", "w", 0)
    make = "me.tables['e'] = me.store.table('e', row_shape=2, rule=ringcoll.rules.{})\n"
    push = "me.tables['e'].push([1, 2], numpy.ones((2, 2), 'float32'))\n"
    pull = "result = me.tables['e'].pull([1, 2]).tolist()"
    store.run(make.format("SGD(1.0, momentum=0.5)") + push)
    store.run("me.tables['e'].set_rule(ringcoll.rules.Adagrad(0.5))")
    store.run(push + "me.store.commit()")
    later = store.run(push + pull)
    store.run("me.store.drop_table('e')")
    with pytest.raises(Failed, match=r"the rule adagrad \(arrays: 1\), and is made with sgd"):
        store.run(make.format("SGD(1.0, momentum=0.5)"))
    assert store.run(make.format("Adagrad(0.5)") + push + pull) == later
    # The same rule with another number of arrays of state.
    store.run("me.tables['e'].set_rule(ringcoll.rules.SGD(0.5))")
    store.run(push + "me.store.commit()")
    later = store.run(push + pull)
    store.run("me.store.drop_table('e')")
    with pytest.raises(Failed, match=r"without state of a rule, .* sgd \(arrays: 1\)"):
        store.run(make.format("SGD(1.0, momentum=0.5)"))
    assert store.run(make.format("SGD(0.5)") + push + pull) == later


def test_files_show_tables(member: Callable[..., Member], tmp_path: Path) -> None:
    store = member("found", "w", 0)
    text = f"""
import pathlib
from ringcoll.weights.follower import Follower
store = me.store
store._follow_files(pathlib.Path({str(tmp_path)!r}))
table = store.table("d", (4, 3))
table.push(None, numpy.arange(12, dtype="float32").reshape(4, 3))
result = store.commit()
"""
    store.run(text)
    values = tmp_path / "latest" / "tables" / "d" / "values.npy"
    wait_until(values.exists)
    found: Any = numpy.load(values)
    assert found.tolist() == numpy.arange(12).reshape(4, 3).tolist()
