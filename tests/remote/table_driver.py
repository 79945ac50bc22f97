"""Drives real tables and their model side by side, by operations that are chosen at random.

All servers and clients are in this process; servers come and go, so shards move while calls are
under way. A seed decides all that is done, but not when threads run: a seed that has failed may
have to be tried several times.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy
from stores import Cluster, RealFactory, together, wait_until
from table_model import ModelTable, slots_of

from ringcoll import rules
from ringcoll.errors import Gone, InvalidArgument, Mismatch

NAMES = ["a", "b", "b/c", "d"]
LANES = 8  # in a burst each client has the ids of one lane for itself
IDS = range(-24, 40)
SHARED = range(1 << 40, (1 << 40) + 6)  # to which all clients of a burst push, where sums are exact

_WAIT_S = 60.0
_MOST_GUESTS = 4
_TOLD = 30  # operations that a failed run tells

Ids = list[int] | None


class Tested(NamedTuple):
    """A table with its model. One that only adds has integers for ever."""

    model: ModelTable
    only_adds: bool


class Blocked(NamedTuple):
    """A pull that waits for a clock. Its worker does nothing else with the table meanwhile."""

    store: Any
    name: str
    ids: Ids
    call: Any


class Driver:
    """Makes random operations, and compares what comes of them with the models."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed, self.folder = seed, folder
        self.random = random.Random(seed)
        self.cluster = Cluster(RealFactory(), "a" * self.random.randint(1, 3), replicas=1)
        self.tables: dict[str, Tested] = {}
        self.saved: dict[str, Tested] = {}  # in the newest version
        self.blocked: list[Blocked] = []
        self.holding: list[Any] = []  # guests that serve
        self.counts: Counter[str] = Counter()
        self.told: deque[str] = deque(maxlen=_TOLD)

    def run(self, operations: int) -> Counter[str]:
        """Makes so many operations, and checks what there is in the end."""
        try:
            self._run(operations)
        except BaseException as error:
            error.add_note(f"seed {self.seed}: {dict(self.counts)}")
            error.add_note("the last operations:\n  " + "\n  ".join(self.told))
            raise
        finally:
            self.cluster.close()
        return self.counts

    def _run(self, operations: int) -> None:
        kinds: list[tuple[Callable[[], None], float]] = [
            (self.push, 25),
            (self.pull, 25),
            (self.push_pull, 12),
            (self.assign, 5),
            (self.tick, 25),
            (self.burst, 6),
            (self.set_rule, 3),
            (self.join, 1.5),
            (self.make, 4),
            (self.drop, 0.8),
            (self.commit, 1),
            (self.come, 0.8),
            (self.go, 0.6),
        ]
        while self.counts.total() < operations:
            ((kind, _),) = self.random.choices(kinds, [weight for _, weight in kinds])
            with contextlib.suppress(IndexError):  # nothing to choose from
                kind()
            self._look_at_blocked()
        self._finish()

    def _tell(self, kind: str, text: str) -> None:
        """Counts an operation, and says what is done now, for the case that it fails."""
        self.counts[kind] += 1
        self.told.append(f"{kind} {text}")

    # Whom and what to choose. IndexError: there is none.

    def _stores(self) -> list[Any]:
        return [*self.cluster.stores, *self.cluster.guests]

    def _name(self, store: Any) -> str:
        if store in self.cluster.stores:
            return f"rank {self.cluster.stores.index(store)}"
        return f"guest {store._me}"

    def _worker(self, store: Any) -> int:
        return int(store._control.tables.number)

    def _free(self, name: str) -> list[Any]:
        """Those that may call a table now."""
        waiting = [each.store for each in self.blocked if each.name == name]
        return [store for store in self._stores() if store not in waiting]

    def _choose(self) -> tuple[str, ModelTable, Any]:
        name = self.random.choice(list(self.tables))
        return name, self.tables[name].model, self.random.choice(self._free(name))

    def _ids(self, model: ModelTable, among: Sequence[int] = IDS) -> Ids:
        if model.dense_rows:
            return None
        return [self.random.choice(among) for _ in range(self.random.choice([0, 1, 2, 5, 20]))]

    def _values(self, model: ModelTable, ids: Ids) -> numpy.ndarray:
        rows = model.dense_rows if ids is None else len(ids)
        draw = numpy.random.default_rng(self.random.getrandbits(32))
        return draw.integers(-9, 10, (rows, *model.row_shape)).astype("float32")

    def _check(self, name: str, ids: Ids, found: Any, expected: Any = None) -> None:
        expected = self.tables[name].model.pull(ids) if expected is None else expected
        same = found.tobytes() == expected.tobytes()
        assert same, f"{name}[{ids}] is\n{found}\nand not\n{expected}"

    # Calls, one after another.

    def push(self) -> None:
        name, model, store = self._choose()
        ids = self._ids(model)
        values = self._values(model, ids)
        self._tell("push", f"{name}[{ids}] by {self._name(store)}")
        if not model.may_push(self._worker(store)):
            if ids != []:
                self._refuse(lambda: store.table(name).push(ids, values), "must join first")
            return
        store.table(name).push(ids, values)
        model.push(self._worker(store), ids, values)

    def pull(self) -> None:
        name, model, store = self._choose()
        ids = self._ids(model)
        self._tell("pull", f"{name}[{ids}] by {self._name(store)}")
        call = store.table(name).pull_async(ids)
        if model.may_pull(self._worker(store)) or ids == []:
            self._check(name, ids, call.wait(_WAIT_S))
        else:
            self.counts["pulls that wait"] += 1
            self.blocked.append(Blocked(store, name, ids, call))

    def push_pull(self) -> None:
        name, model, store = self._choose()
        worker = self._worker(store)
        if not (model.may_push(worker) and model.may_pull(worker)):
            return
        ids = self._ids(model)
        values = self._values(model, ids)
        self._tell("push_pull", f"{name}[{ids}] by {self._name(store)}")
        model.push(worker, ids, values)
        self._check(name, ids, store.table(name).push_pull(ids, values))

    def assign(self) -> None:
        name, model, store = self._choose()
        ids = self._ids(model)
        values = self._values(model, ids)
        self._tell("assign", f"{name}[{ids}] by {self._name(store)}")
        store.table(name).assign(ids, values)
        model.assign(ids, values)

    def set_rule(self) -> None:
        name, model, store = self._choose()
        if self.tables[name].only_adds:
            return
        rule = self._rule()
        self._tell("set_rule", f"{name}: {rule} by {self._name(store)}")
        store.table(name).set_rule(rule)
        model.set_rule(rule)

    def _refuse(self, call: Callable[[], Any], text: str) -> None:
        self.counts["refused"] += 1
        try:
            call()
        except (InvalidArgument, Mismatch) as error:
            assert text in str(error), error
        else:
            raise AssertionError(f"it should have been refused: {text}")

    # Clocks.

    def tick(self) -> None:
        name, _, _ = self._choose()
        self._tick(name, 0.7)

    def _tick(self, name: str, share: float = 1.0) -> None:
        """In this share of cases the slowest worker finishes its clock, else any."""
        model = self.tables[name].model
        workers = [store for store in self._free(name) if self._worker(store) in model.clocks]
        self.random.shuffle(workers)
        if self.random.random() < share:
            workers.sort(key=lambda store: model.clocks[self._worker(store)])
        store = workers[0]
        self._tell("tick", f"{name} by {self._name(store)}")
        model.tick(self._worker(store))
        assert store.table(name).tick() == model.clocks[self._worker(store)]

    def join(self) -> None:
        name, model, store = self._choose()
        if model.staleness is None:
            return
        self._tell("join", f"{name} by {self._name(store)}")
        assert store.table(name).join() == model.join(self._worker(store))

    def _look_at_blocked(self) -> None:
        """Pulls whose clock is complete are answered, and no others are."""
        for each in list(self.blocked):
            if not self.tables[each.name].model.may_pull(self._worker(each.store)):
                assert not each.call.done(), f"a pull of {each.name} did not wait for the clock"
                continue
            self.blocked.remove(each)
            self._check(each.name, each.ids, each.call.wait(_WAIT_S))

    # Many calls at once.

    def burst(self) -> None:
        """Several clients make many calls without waiting, while servers come or go."""
        name, model, _ = self._choose()
        clients = [s for s in self._free(name) if model.may_push(self._worker(s))]
        self.random.shuffle(clients)
        clients = clients[: 1 if model.dense_rows else LANES]
        self._tell("burst", f"{name} by {', '.join(map(self._name, clients))}")
        with self._meanwhile(clients):
            together(
                [
                    self._calls(name, store, lane, self.random.randrange(5, 40))
                    for lane, store in enumerate(clients)
                ]
            )

    def _calls(self, name: str, store: Any, lane: int, count: int) -> Callable[[], None]:
        """What one client does in a burst: in its lane the model knows what each pull has."""
        table, (model, only_adds) = store.table(name), self.tables[name]
        may_pull = model.may_pull(self._worker(store))
        among = [each for each in IDS if each % LANES == lane]
        todo: list[tuple[str, Ids, Any, Any]] = []
        for _ in range(count):
            whats = ["push", "push", "assign", *(["pull", "push_pull"] if may_pull else [])]
            what, ids = self.random.choice(whats), self._ids(model, among)
            if what == "push" and ids and (only_adds or model.staleness == 0):
                ids += [self.random.choice(SHARED) for _ in range(3)]
            values, expected = self._values(model, ids), None
            if what == "assign":
                model.assign(ids, values)
            elif what != "pull":
                model.push(self._worker(store), ids, values)
            if "pull" in what:
                expected = model.pull(ids)
            todo.append((what, ids, values, expected))
            self.counts[what] += 1

        def run() -> None:
            calls = []
            for what, ids, values, _ in todo:
                arguments = [ids] if what == "pull" else [ids, values]
                calls.append(getattr(table, f"{what}_async")(*arguments))
            for call, (_, ids, _, expected) in zip(calls, todo, strict=True):
                found = call.wait(_WAIT_S)
                if expected is not None:
                    self._check(name, ids, found, expected)

        return run

    @contextlib.contextmanager
    def _meanwhile(self, busy: Sequence[Any]) -> Iterator[None]:
        """A server comes or goes, perhaps, while others are busy."""
        acts = [lambda: None, lambda: None]
        if len(self.cluster.guests) < _MOST_GUESTS:
            acts.append(lambda: self._come(hold=True))
        kept = [*busy, *(each.store for each in self.blocked)]
        if idle := [store for store in self.holding if store not in kept]:
            goes = self.random.choice(idle)
            self._settle()
            acts.append(lambda: self._go(goes))
        act = self.random.choice(acts)
        thread = threading.Thread(target=lambda: failed.extend(together([act], catch=True)))
        failed: list[Any] = []
        thread.start()
        yield
        thread.join()
        assert failed == [None], failed

    # Tables come and go.

    def _rule(self) -> rules.Rule:
        lr = self.random.choice([0.1, 0.5, 0.03])
        return self.random.choice(
            [
                rules.Sum(),
                rules.Assign(),
                rules.Assign(combine="sum"),
                rules.SGD(lr=lr),
                rules.SGD(lr=lr, momentum=0.9),
                rules.Adagrad(lr=lr),
            ]
        )

    def make(self) -> None:
        """Makes a table, which begins with what was saved if the newest version has it."""
        name = self.random.choice([each for each in NAMES if each not in self.tables])
        if name in self.saved:
            before, only_adds = self.saved[name]
            staleness = self.random.choice([None, 0, 1])
            model = before.saved(staleness=staleness)
        else:
            only_adds = self.random.random() < 0.4
            model = ModelTable(
                row_shape=self.random.choice([(3,), (2, 2), (300,)]),
                rule=rules.Sum() if only_adds else self._rule(),
                staleness=self.random.choice([None, None, 0, 0, 1, 2]),
                initial=self.random.choice([0.0, 2.0]),
                dense_rows=self.random.choice([0, 0, 0, 5]),
            )
            if model.dense_rows and self.random.random() < 0.5:
                model = ModelTable((2, 4000), model.rule, model.staleness, dense_rows=6)  # 3 shards
        self._tell("make", f"{name}: {model.rule}, staleness={model.staleness}")
        if name in self.saved:
            self._try_other_rule(name, model)
        self._make(self.cluster, name, model)
        self.tables[name] = Tested(model, only_adds)

    def _describe(self, model: ModelTable, **changes: Any) -> dict[str, Any]:
        kind = "shape" if model.dense_rows else "row_shape"
        shape = (model.dense_rows, *model.row_shape) if model.dense_rows else model.row_shape
        found = {kind: shape, "rule": model.rule, "staleness": model.staleness}
        return found | {"initial": model.initial} | changes

    def _make(self, cluster: Cluster, name: str, model: ModelTable) -> None:
        cluster.all(lambda rank, store: store.table(name, **self._describe(model)))
        if model.staleness is not None:
            model.clocks = {self._worker(store): 0 for store in cluster.stores}

    def _try_other_rule(self, name: str, model: ModelTable) -> None:
        """A table is not made with a rule that keeps another state than was saved."""
        other = self._rule()
        kinds = [(type(rule) if slots_of(rule) else None) for rule in (other, model.rule)]
        if kinds[0] is not kinds[1]:
            described = self._describe(model, rule=other)
            self._refuse(lambda: self.cluster.stores[0].table(name, **described), "was saved with")

    def drop(self) -> None:
        name, _, store = self._choose()
        self._tell("drop", f"{name} by {self._name(store)}")
        handles = [each.table(name) for each in self._stores()]
        store.drop_table(name)
        del self.tables[name]
        for each in [each for each in self.blocked if each.name == name]:
            self.blocked.remove(each)
            assert self._is_gone(lambda call=each.call: call.wait(_WAIT_S)), "it was answered"
        for handle in handles:
            wait_until(lambda t=handle: self._is_gone(lambda: t.assign(*self._nothing(t))), _WAIT_S)

    def _nothing(self, table: Any) -> tuple[Ids, Any]:
        """What can be assigned to a table that is about to go."""
        shape = table.shape or (1, *table.row_shape)
        return (None if table.shape else [0]), numpy.zeros(shape, "float32")

    def _is_gone(self, call: Callable[[], Any]) -> bool:
        try:
            call()
        except Gone:
            return True
        return False

    # Versions.

    def commit(self) -> None:
        """Waits for all calls of ranks, so none may be blocked."""
        while self.blocked:
            self._tick(self.blocked[0].name)
            self._look_at_blocked()
        self._tell("commit", f"of {list(self.tables)}")
        self.cluster.commit()
        self.saved |= {
            name: Tested(model.saved(), adds) for name, (model, adds) in self.tables.items()
        }

    # Servers and clients come and go.

    def come(self) -> None:
        if len(self.cluster.guests) < _MOST_GUESTS:
            self._come(hold=self.random.random() < 0.5)

    def _come(self, hold: bool) -> None:
        guest = self.cluster.guest(hold=hold)
        if hold:
            self.holding.append(guest)
        self._tell("come", f"{self._name(guest)}, hold={hold}")

    def go(self) -> None:
        guest = self.random.choice(self.cluster.guests)
        if any(each.store is guest for each in self.blocked):
            return
        if guest in self.holding:
            self._settle()
        self._go(guest)

    def _go(self, guest: Any) -> None:
        self._tell("go", self._name(guest))
        self.cluster.guests.remove(guest)
        if guest in self.holding:
            self.holding.remove(guest)
        worker = self._worker(guest)
        guest.close()
        self.cluster.guest_agents.pop(id(guest)).close()
        for name, (model, _) in self.tables.items():
            if worker in model.clocks:
                model.leave(worker)
                table = self.cluster.stores[0].table(name)
                wait_until(lambda t=table: worker not in self._info(t)["workers"], _WAIT_S)

    def _info(self, table: Any) -> Any:
        """What all shards of a table say together. While one moves it may be missing."""
        found: Any = {}

        def whole() -> bool:
            found.update(table.info())
            return not found["missing"] and found["shards"] == len(self._shards(table.name))

        wait_until(whole, _WAIT_S)
        return found

    def _records(self) -> Any:
        return self.cluster.stores[0]._control.node.replica.catalog.tables.records

    def _shards(self, name: str) -> Any:
        return self._records()[name]["shards"]

    def _settle(self) -> None:
        """Waits until all shards have their backups: the next server that goes must not take the
        last copy."""
        holders = len(self.cluster.stores) + len(self.holding)
        wanted = min(2, holders)

        def settled() -> bool:
            shards = [shard for record in self._records().values() for shard in record["shards"]]
            return all(len(s["holders"]) == wanted and not s["filling"] for s in shards)

        wait_until(settled, _WAIT_S)

    # The end.

    def _finish(self) -> None:
        """All clients find the same. So do others that begin with a file of the last version."""
        self.commit()
        for name, (model, _) in self.tables.items():
            for store in self._stores():
                if model.may_pull(self._worker(store)):
                    self._check_all(store, name, model)
            table = self.cluster.stores[0].table(name)
            wait_until(lambda t=table, m=model: self._agrees(t, m), _WAIT_S)
        file = self.folder / "saved.safetensors"
        self.cluster.stores[0].save(file)
        others = Cluster(RealFactory(), "a" * self.random.randint(1, 3), replicas=1)
        try:
            others.all(lambda rank, store: store.restore(file))
            for name, (saved, _) in self.saved.items():
                model = saved.saved(staleness=None)
                self._make(others, name, model)
                self._check_all(others.stores[-1], name, model)
                ids = None if model.dense_rows else [*IDS, *SHARED]
                values = self._values(model, ids)
                others.stores[0].table(name).push(ids, values)
                model.push(0, ids, values)
                self._check_all(others.stores[-1], name, model)
        finally:
            others.close()

    def _check_all(self, store: Any, name: str, model: ModelTable) -> None:
        ids = None if model.dense_rows else [*IDS, *SHARED]
        self._check(name, ids, store.table(name).pull(ids), model.pull(ids))

    def _agrees(self, table: Any, model: ModelTable) -> bool:
        """Servers count the same rows, and know the same clocks. Without staleness they know the
        ranks, but no clocks."""
        info = self._info(table)
        if not model.dense_rows and info["rows"] != len(model.rows):
            return False
        foremost = max(model.clocks.values(), default=0)
        lags = {worker: foremost - clock for worker, clock in model.clocks.items()}
        return model.staleness is None or (info["workers"], info["clock"]) == (lags, model.current)


def run(seed: int, operations: int, folder: Path) -> Counter[str]:
    """Makes so many operations. Returns how often what was done."""
    return Driver(seed, folder).run(operations)
