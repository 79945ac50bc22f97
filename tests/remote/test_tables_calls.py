"""Calls on tables that are many, large, in the wrong process, or come at a bad time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from table_members import Failed, Member, is_doubled, wait_until

# The last of many pushes is what each pull after it has to find.
IN_ORDER = """
table, calls = me.tables["t"], []
ids = numpy.arange(40)
for number in range({first}, {first} + 400):
    table.push_async(ids, numpy.full((40, 2), number, "float32"))
    calls.append(table.pull_async(ids))
result = [numpy.unique(call.wait()).tolist() for call in calls]
"""


def test_calls_keep_their_order_while_shards_move(member: Callable[..., Member]) -> None:
    first = member("found", "w", 1)
    first.ask("table", name="t", rule="assign", row_shape=[2], shards=8)
    client = member("visit", first.address)
    client.ask("find", name="t")
    joined: list[Member] = []
    done = 0
    while len(first.ask("info", name="t")["servers"]) < 3 or done < 2000:
        if len(joined) < 2:
            joined.append(member("join", first.address))
        found = client.run(IN_ORDER.format(first=done))
        assert found == [[number] for number in range(done, done + 400)]
        done += 400
        assert done < 100_000, "shards do not move"
    # They move back, one after another, as servers go.
    for each in joined:
        wait_until(lambda: is_doubled(first))
        each.ask("close")
        found = client.run(IN_ORDER.format(first=done))
        assert found == [[number] for number in range(done, done + 400)]
        done += 400


FORKED = """
import os, signal
def answer_of(call):
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            text = repr(call())
        except BaseException as error:
            text = type(error).__name__ + ": " + str(error)
        os.write(theirs, text.encode())
        os._exit(0)
    os.close(theirs)
    text = b""
    while more := os.read(ours, 4096):
        text += more
    os.close(ours)
    os.waitpid(child, 0)
    return text.decode()
table = me.tables["t"]
calls = [lambda: table.push([1], numpy.ones((1, 2), "float32")), lambda: table.pull([1]),
         lambda: table.info(), lambda: me.store.table("new", row_shape=(2,)),
         lambda: me.store.table("t"), lambda: me.store.drop_table("t"), lambda: me.store.tables()]
result = [answer_of(call) for call in calls]
"""


def test_a_forked_child(member: Callable[..., Member]) -> None:
    server = member("found", "w", 0)
    server.ask("table", name="t", row_shape=[2])
    guest = member("visit", server.address)
    guest.ask("find", name="t")
    for each in (server, guest):
        each.ask("push", name="t", ids=[1], values=[[1, 1]])
        for text in each.run(FORKED):
            assert "belongs to the parent process" in text
    # Their parents go on.
    for count, each in enumerate((server, guest)):
        each.ask("push", name="t", ids=[1], values=[[1, 1]])
        assert each.ask("pull", name="t", ids=[1]) == [[3 + count] * 2]


CLOSE = """
import threading
table, ends = me.tables["t"], []
values = numpy.ones((50_000, 64), "float32")
ids = numpy.arange(50_000)
def push():
    try:
        while True:
            table.push(ids, values)
    except BaseException as error:
        ends.append(f"{{type(error).__name__}}: {{error}}")
threads = [threading.Thread(target=push) for _ in range(3)]
for thread in threads:
    thread.start()
time.sleep({pause})
begin = time.monotonic()
me.store.close()
for thread in threads:
    thread.join()
result = [ends, time.monotonic() - begin]
"""


@pytest.mark.parametrize("pause", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("is_server", [True, False])
def test_a_store_that_is_closed_in_the_middle_of_calls(
    member: Callable[..., Member], is_server: bool, pause: float
) -> None:
    server = member("found", "w", 0)
    server.ask("table", name="t", row_shape=[64])
    guest = member("visit", server.address)
    guest.ask("find", name="t")
    ends, seconds = (server if is_server else guest).run(CLOSE.format(pause=pause))
    assert all(end.startswith("Aborted: ") for end in ends), ends
    assert seconds < 10
    if is_server:
        with pytest.raises(Failed, match=r"Gone|Timeout"):
            guest.run("me.tables['t'].pull([1], timeout=8)")
    else:
        server.ask("pull", name="t", ids=[1])


def test_a_guest_with_a_wrong_key(member: Callable[..., Member]) -> None:
    server = member("found", "w", 0)
    server.ask("table", name="t", row_shape=[2])
    guest = member("visit", server.address)
    connect = f"ringcoll.connect({server.address!r}, 'another')"
    with pytest.raises(Failed, match="key"):
        guest.run(f"ringcoll.Store('w', {connect}, timeout=5).table('t', timeout=5)")
    guest.ask("find", name="t")
    guest.ask("push", name="t", ids=[1], values=[[1, 1]])
    assert server.ask("pull", name="t", ids=[1]) == [[1, 1]]


FORTY = """
tables = [me.store.table(f"table{number}", row_shape=(2,)) for number in range(40)]
calls = []
for number, table in enumerate(tables):
    for _ in range(5):
        calls.append(table.push_async([7, -7], numpy.full((2, 2), number, "float32")))
for call in calls:
    call.wait()
"""


def test_forty_tables_at_once(member: Callable[..., Member]) -> None:
    servers = [member("found", "w", 1)]
    servers.append(member("join", servers[0].address))
    guests = [member("visit", each.address) for each in servers]
    for each in [*servers, *guests]:
        each.say("run", text=FORTY)
    for each in [*servers, *guests]:
        each.answer()
    pull = "result = [me.store.table(f'table{n}').pull([7, -7])[:, 0].tolist() for n in range(40)]"
    assert guests[0].run(pull) == [[20 * number] * 2 for number in range(40)]
    assert len(servers[1].run("result = me.store.tables()")) == 40
    for number in range(40):
        guests[1].run(f"me.store.drop_table('table{number}')")
    assert servers[0].run("result = me.store.tables()") == []


LARGE = """
table = me.tables["t"]
values = numpy.full((4096, 4096), {value}, "float32")
for _ in range(3):
    table.push(None, values)
result = True
"""


def test_two_clients_push_64_mib_at_once(member: Callable[..., Member]) -> None:
    servers = [member("found", "w", 1)]
    servers.append(member("join", servers[0].address))
    servers[0].ask("table", name="t", shape=[4096, 4096])
    guests = [member("visit", each.address) for each in servers]
    for value, guest in enumerate(guests):
        guest.ask("find", name="t")
        guest.say("run", text=LARGE.format(value=1 + value))
    assert all(guest.answer() for guest in guests)
    for each in guests:
        assert each.run("result = numpy.unique(me.tables['t'].pull()).tolist()") == [9]


FILL = """
table = me.tables["t"]
ids = numpy.arange({first}, {first} + 4096)
table.push(ids, numpy.ones((4096, 1024), "float32"))
"""


def test_rows_that_do_not_fit_into_a_servers_memory(member: Callable[..., Member]) -> None:
    server = member("found", "w", 0)
    server.ask("table", name="t", row_shape=[1024], shards=2)
    guest = member("visit", server.address)
    guest.ask("find", name="t")
    guest.run(FILL.format(first=0))
    server.ask("limit", more=100 << 20)
    refused = 0
    for block in range(1, 20):
        try:
            guest.run(FILL.format(first=4096 * block))
        except Failed as error:
            assert error.kind == "Refused", error
            assert "memory" in str(error)
            refused += 1
    assert refused >= 10
    # It goes on.
    guest.ask("push", name="t", ids=[1, 2], values=[[1] * 1024] * 2)
    assert guest.run("result = me.tables['t'].pull([1, 2, 3])[:, 0].tolist()") == [2, 2, 1]
    server.ask("limit")
    guest.run(FILL.format(first=1 << 30))
    pull = f"result = me.tables['t'].pull([{1 << 30}, {(1 << 30) + 4095}])[:, 0].tolist()"
    assert guest.run(pull) == [1, 1]
