"""Drives tables of servers and clients in processes of their own, which are killed and stopped at
random, and compares them with the model.

A client notes which of its calls was acknowledged in a file that outlives it. So of a client that
is killed at most one call is in doubt: the servers may have it or not, each row for itself.
"""

from __future__ import annotations

import copy
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
from table_members import Member, is_doubled, wait_until
from table_model import ModelTable

from ringcoll import rules

ROW = 3
CALLS = 60  # of each client in a round
STEPS = 12  # of each worker in a round of clocks
SHARED = list(range(1 << 40, (1 << 40) + 6))
_SERVERS, _CLIENTS = 3, 3
_TABLES = ("sum", "sgd", "dense", "clocks")


class Client:
    """A process that calls tables, and is a worker of the one with clocks."""

    def __init__(self, member: Member, lane: int, folder: Path) -> None:
        self.member, self.lane = member, lane
        for name in _TABLES:
            member.ask("find", name=name)
        self.notes = folder / f"client{lane}"
        self.number = member.run(
            "me.tables['clocks'].join()\nresult = me.store._control.tables.number"
        )
        self.calls: list[list[Any]] = []
        self.is_dead = False

    @property
    def acknowledged(self) -> int:
        """How many calls of the last round were answered, for certain."""
        return int(numpy.fromfile(self.notes, numpy.int64)[0])

    def begin(self, calls: list[list[Any]]) -> None:
        self.calls = calls
        self.notes.write_bytes(bytes(8))
        told = [[w, n, i, None if v is None else v.tolist()] for w, n, i, v in calls]
        self.member.say("operate", calls=told, notes=str(self.notes))

    def answers(self) -> list[Any]:
        """The values that pulls have found, and None for other calls."""
        return [] if self.is_dead else list(self.member.answer())


class FaultsDriver:
    """``start("visit", address)`` makes a member."""

    def __init__(self, seed: int, folder: Path, start: Callable[..., Member]) -> None:
        self.random, self.folder, self.start = random.Random(seed), folder, start
        self.counts: Counter[str] = Counter()
        self.servers = [start("found", "w", 1)]
        self.servers += [start("join", self.servers[0].address) for _ in range(_SERVERS - 1)]
        first = start("visit", self.servers[0].address)  # so no server is a worker
        first.ask("table", name="sum", row_shape=[ROW], shards=6)
        first.ask("table", name="sgd", rule="sgd", row_shape=[ROW], shards=6)
        first.ask("table", name="dense", shape=[3, 9000], shards=3)
        first.ask("table", name="clocks", row_shape=[ROW], shards=5, staleness=0)
        momentum = rules.SGD(lr=0.1, momentum=0.9)
        self.models = {
            "sum": ModelTable((ROW,), rules.Sum()),
            "sgd": ModelTable((ROW,), momentum),
            "dense": ModelTable((9000,), rules.Sum(), dense_rows=3),
            "clocks": ModelTable((ROW,), rules.Sum(), staleness=0),
        }
        self.lanes = 0
        self.clients: list[Client] = []
        while len(self.clients) < _CLIENTS:
            self._come()

    def _come(self) -> None:
        client = Client(self.start("visit", self.servers[0].address), self.lanes, self.folder)
        self.lanes += 1
        self.models["clocks"].join(client.number)
        self.clients.append(client)

    def run(self, rounds: int) -> Counter[str]:
        for _ in range(rounds):
            wait_until(lambda: is_doubled(self.servers[0]), 60)
            if self.random.random() < 0.6:
                self._round(self._lane_calls, self._check_lanes)
            else:
                self._round(self._clock_calls, self._check_clocks)
            for name, model in self.models.items():
                self._check_all(name, model)
            while len(self.clients) < _CLIENTS:
                self._come()
            while len(self.servers) < _SERVERS:
                self.servers.append(self.start("join", self.servers[0].address))
        return self.counts

    def _round(
        self,
        calls_of: Callable[[Client], list[list[Any]]],
        check: Callable[[dict[Client, list[Any]]], None],
    ) -> None:
        for client in self.clients:
            client.begin(calls_of(client))
        self._disturb()
        found = {client: client.answers() for client in self.clients}
        for client in self.clients:
            self.counts["calls"] += len(client.calls)
        check(found)
        self._bury()

    # What happens meanwhile.

    def _disturb(self) -> None:
        time.sleep(self.random.uniform(0, 0.3))
        what = self.random.choice(
            [
                self.kill_server,
                self.kill_server,
                self.stop_server,
                self.stop_client,
                self.kill_client,
                self.kill_client,
                self.join_server,
            ]
        )
        self.counts[what.__name__] += 1
        what()

    def kill_server(self) -> None:
        """The first one may lead the store."""
        self.servers.pop(self.random.randrange(len(self.servers))).kill()

    def stop_server(self) -> None:
        self._stop(self.random.choice(self.servers), self.random.choice([0.3, 1.5, 5.0]))

    def stop_client(self) -> None:
        self._stop(self.random.choice(self.clients).member, self.random.choice([0.3, 1.5]))

    def _stop(self, member: Member, seconds: float) -> None:
        member.signal(signal.SIGSTOP)
        time.sleep(seconds)
        member.signal(signal.SIGCONT)

    def kill_client(self) -> None:
        client = self.random.choice(self.clients)
        client.member.kill()
        client.is_dead = True

    def join_server(self) -> None:
        self.servers.append(self.start("join", self.servers[0].address))

    def _bury(self) -> None:
        """Servers notice that a client has ended."""
        for client in [client for client in self.clients if client.is_dead]:
            self.clients.remove(client)
            self.models["clocks"].leave(client.number)
            wait_until(lambda number=client.number: not self._is_worker(number), 60)

    def _is_worker(self, number: int) -> bool:
        self.servers[0].ask("find", name="clocks")
        info = self.servers[0].ask("info", name="clocks")
        return bool(info["missing"]) or str(number) in info["workers"] or info["shards"] != 5

    # Rounds in which each client has rows for itself, and all push to others that are added up.

    def _lane_calls(self, client: Client) -> list[list[Any]]:
        own = list(range(client.lane * 16, client.lane * 16 + 16))
        calls: list[list[Any]] = []
        for _ in range(CALLS):
            what = self.random.choice(["push", "push", "pull", "push_pull"])
            name = self.random.choice(["sum", "sum", "sgd"])
            ids = [self.random.choice(own) for _ in range(self.random.choice([1, 3, 12]))]
            if (what, name) == ("push", "sum"):
                ids += [self.random.choice(SHARED) for _ in range(2)]
                if self.random.random() < 0.1:
                    name, ids = "dense", []
            values = None if what == "pull" else self._values(name, ids or None)
            calls.append([what, name, ids or None, values])
        return calls

    def _values(self, name: str, ids: list[int] | None) -> numpy.ndarray:
        """None is 0, so each push changes each row."""
        model = self.models[name]
        rows = model.dense_rows if ids is None else len(ids)
        draw = numpy.random.default_rng(self.random.getrandbits(32))
        return draw.integers(1, 10, (rows, *model.row_shape)).astype("float32")

    def _check_lanes(self, found: dict[Client, list[Any]]) -> None:
        doubtful: list[list[Any]] = []
        for client, answers in found.items():
            sure = len(client.calls)
            if client.is_dead:
                sure = client.acknowledged
                doubtful += client.calls[sure : sure + 1]
                answers = [None] * sure
            for call, answer in zip(client.calls[:sure], answers, strict=True):
                what, name, ids, values = call
                if what != "pull":
                    self.models[name].push(client.number, ids, values)
                if answer is not None:
                    self._agree(self.models[name].pull(ids), answer, name, ids)
        for what, name, ids, values in doubtful:
            if what != "pull":
                after = copy.deepcopy(self.models[name])
                after.push(0, ids, values)
                self._resolve(name, after)

    def _agree(self, expected: Any, answer: Any, name: str, ids: Any) -> None:
        same = numpy.array_equal(numpy.float32(answer), expected)
        assert same, f"{name}[{ids}] is {answer}, and not {expected.tolist()}"

    def _resolve(self, name: str, after: ModelTable) -> None:
        """Each row is as it was, or as a call that is in doubt makes it."""
        model = self.models[name]
        ids = None if model.dense_rows else sorted({*model.rows, *after.rows})
        kept = self._pull(name, ids)
        before, later = model.pull(ids), after.pull(ids)
        for index, each in enumerate(ids or range(len(kept))):
            has, has_not = (numpy.array_equal(kept[index], rows[index]) for rows in (later, before))
            assert has or has_not, (
                f"{name}[{each}] is {kept[index]}, not {before[index]} or {later[index]}"
            )
            self.counts["rows that a call in doubt has changed"] += int(not has_not)
            if has and each in after.rows:
                model.rows[each] = after.rows[each]

    def _pull(self, name: str, ids: list[int] | None) -> numpy.ndarray:
        reader = self.random.choice(self.servers)
        reader.ask("find", name=name)
        text = f"result = me.tables[{name!r}].pull({ids}).tolist()"
        return numpy.float32(reader.run(text)).reshape(-1, *self.models[name].row_shape)

    def _check_all(self, name: str, model: ModelTable) -> None:
        ids = None if model.dense_rows else sorted(model.rows)
        self._agree(model.pull(ids), self._pull(name, ids), name, ids)

    # Rounds of clocks: all workers add to the same rows, and a pull has whole clocks.

    def _clock_calls(self, client: Client) -> list[list[Any]]:
        calls: list[list[Any]] = []
        for _ in range(STEPS):
            values = self._values("clocks", SHARED)
            calls += [["pull", "clocks", SHARED, None], ["push", "clocks", SHARED, values]]
            calls.append(["tick", "clocks", None, None])
        return calls

    def _check_clocks(self, found: dict[Client, list[Any]]) -> None:
        """A client that was killed has ended some clocks. The next one is in doubt if it was about
        to end that, and counts for some rows then, and not for others."""
        ended = dict.fromkeys(found, STEPS)
        doubt: Client | None = None
        for client in found:
            if client.is_dead:
                ended[client], rest = divmod(client.acknowledged, 3)
                doubt = client if rest == 2 else None
        models = [self._steps(found, ended)]
        if doubt is not None:
            models.append(self._steps(found, ended | {doubt: ended[doubt] + 1}))
        final, pulls = zip(*models, strict=True)
        for client, answers in found.items():
            for step, answer in enumerate(answers[::3]):
                rows = [each[step] for each in pulls]
                for index, row in enumerate(numpy.float32(answer)):
                    assert any(numpy.array_equal(row, one[index]) for one in rows), (
                        f"clocks[{index}] at step {step} of client {client.lane} is {row}, and not "
                        f"{[one[index].tolist() for one in rows]}"
                    )
        self.models["clocks"] = final[0]
        if doubt is not None:
            self._resolve("clocks", final[1])

    def _steps(
        self, found: dict[Client, list[Any]], ended: dict[Client, int]
    ) -> tuple[ModelTable, list[numpy.ndarray]]:
        """The model after a round in which these clients have ended so many clocks, and what each
        step's pulls have."""
        model = copy.deepcopy(self.models["clocks"])
        pulls = []
        for step in range(STEPS):
            pulls.append(model.pull(SHARED))
            for client in found:
                if step >= ended[client]:
                    model.leave(client.number)
                    continue
                model.push(client.number, SHARED, client.calls[3 * step + 1][3])
                model.tick(client.number)
        for client in found:
            if client.is_dead:
                model.leave(client.number)
        return model, pulls
