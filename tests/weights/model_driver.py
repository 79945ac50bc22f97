"""Drives real stores and the model side by side, by operations that are chosen at random.

A seed decides what the run is like (:class:`Mix`) and all that is done in it. What it does not
decide is when threads run, so a seed that has failed may have to be tried several times.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy
from model import Model
from stores import Cluster, FakeFactory, RealFactory, wait_until

from ringcoll.errors import Error, Gone, InvalidArgument
from ringcoll.weights import Pending

NAMES = [f"layer.{i}" for i in range(6)]
TYPES = ["float32", "float64", "int8", "uint16", "bool", "complex64"]
RANKS = "the ranks"  # the writers' group of all ranks; that of a guest is its store

_WAIT_S = 30.0
_MOST_GUESTS, _MOST_LEASES = 4, 4
_TOLD = 30  # operations that a failed run tells


class Mix(NamedTuple):
    """What a run is like."""

    hosts: str  # of the ranks, a letter each
    keep: int
    replicas: int
    delay_s: float  # of a message, at most
    kills: float  # how often, beside the weights of other operations
    ranks_go: bool  # ranks leave or are killed too, not only guests
    switch_s: float  # after so long another thread may run Python


def simulated_mix(seed: int) -> Mix:
    """Agents that are simulated can be killed, and their messages be late."""
    choose = random.Random(seed).choice
    return Mix(
        hosts=choose(["a", "ab", "aa", "aba", "abc", "aabb"]),
        keep=choose([1, 2, 2, 3]),
        replicas=choose([1, 1, 2]),
        delay_s=choose([0.0] * 9 + [0.001]),
        kills=choose([0.0, 0.5, 2.0]),
        ranks_go=choose([False, True]),
        switch_s=choose([0.005, 0.0005, 0.00005]),
    )


def real_mix(seed: int) -> Mix:
    """Real agents in one process can come and go."""
    return simulated_mix(seed)._replace(delay_s=0.0, kills=0.0)


def run_simulated(seed: int, operations: int) -> Counter[str]:
    """A run on simulated agents. Returns how often what was done."""
    mix = simulated_mix(seed)
    return Driver(FakeFactory(seed, mix.delay_s), mix, seed).run(operations)


def run_real(seed: int, operations: int) -> Counter[str]:
    """A run on real agents."""
    return Driver(RealFactory(), real_mix(seed), seed).run(operations)


class Driver:
    """Makes random operations, and compares what comes of them with the model."""

    def __init__(self, factory: Any, mix: Mix, seed: int) -> None:
        self.mix, self.seed = mix, seed
        self.random = random.Random(seed)
        self.model = Model(mix.keep)
        self.cluster = Cluster(factory, list(mix.hosts), keep=mix.keep, replicas=mix.replicas)
        self.ranks = list(self.cluster.stores)  # those that live
        self.holding: list[Any] = []  # guests that are holders
        self.leases: list[tuple[Any, int, Any]] = []  # store, version, lease
        self.arrays: dict[tuple[Any, str], numpy.ndarray] = {}  # what a group has put last
        self.counts: Counter[str] = Counter()
        self.told: deque[str] = deque(maxlen=_TOLD)

    def run(self, operations: int) -> Counter[str]:
        """Makes so many operations, and checks what there is in the end."""
        switch_s = sys.getswitchinterval()
        sys.setswitchinterval(self.mix.switch_s)
        try:
            self._run(operations)
        except BaseException as error:
            error.add_note(f"seed {self.seed}: {self.mix}, done: {dict(self.counts)}")
            error.add_note("the last operations:\n  " + "\n  ".join(self.told))
            raise
        finally:
            sys.setswitchinterval(switch_s)
            self.cluster.close()
        return self.counts

    def _run(self, operations: int) -> None:
        kinds: list[tuple[Callable[[], bool], float]] = [
            (self.put, 30),
            (self.commit, 18),
            (self.get, 30),
            (self.get_all, 6),
            (self.list_versions, 6),
            (self.lease, 4),
            (self.release, 4),
            (self.delete, 1),
            (self.update, 5),
            (self.join, 0.8 + self.mix.kills),
            (self.leave, 0.4),
            (self.kill, self.mix.kills),
        ]
        done = 0
        while done < operations:
            ((kind, _),) = self.random.choices(kinds, [weight for _, weight in kinds])
            if kind():
                done += 1
                self.counts[kind.__name__] += 1
        self._check_end()

    def tell(self, text: str) -> None:
        """Says what is done now, for the case that it fails."""
        self.told.append(text)

    # Who there is.

    def stores(self) -> list[Any]:
        return [*self.ranks, *self.cluster.guests]

    def name(self, store: Any) -> str:
        if store in self.cluster.stores:
            return f"rank {self.cluster.stores.index(store)}"
        return f"guest {store._me}"

    def anyone(self) -> Any:
        return self.random.choice(self.stores())

    def groups(self) -> list[tuple[Any, list[Any]]]:
        """The writers' groups that are whole, with their stores."""
        found: list[tuple[Any, list[Any]]] = [(guest, [guest]) for guest in self.cluster.guests]
        if len(self.ranks) == len(self.cluster.stores):
            found.append((RANKS, self.ranks))
        return found

    def group(self) -> tuple[Any, list[Any]] | None:
        """Some writers' group. The ranks, if they are all there, more often than each guest."""
        groups = self.groups()
        if not groups:
            return None
        return groups[-1] if self.random.random() < 0.3 else self.random.choice(groups)

    # Writing. Each operation says whether it could be made.

    def put(self) -> bool:
        if (chosen := self.group()) is None:
            return False
        group, stores = chosen
        name = self.random.choice(NAMES)
        value = self._value(group, name)
        self.tell(f"put {name} {value.dtype}{list(value.shape)} by {self._title(group)}")
        if len(stores) > 1 and value.ndim and len(value) >= len(stores):
            self._put_slices(stores, name, value)
        else:
            for store in stores:
                store.put(name, value)
        self.model.put(group, name, value)
        return True

    def _title(self, group: Any) -> str:
        return RANKS if group is RANKS else self.name(group)

    def _value(self, group: Any, name: str) -> numpy.ndarray:
        """A tensor to put: the array that was put before with other bytes, or one that differs a
        little from what the newest version has, or anything."""
        chance = self.random.random()
        before = self.arrays.get((group, name))
        if before is None or chance > 0.2:
            before = self.model.history.get(self.model.newest, {}).get(name)
            before = None if before is None else before.copy()
        if before is None or chance > 0.6:
            before = self._new_value()
        if before.size:
            flat = before.reshape(-1).view(numpy.uint8)
            flat[self.random.randrange(len(flat)) // before.itemsize * before.itemsize] ^= 1
        self.arrays[group, name] = before
        return before

    def _new_value(self) -> numpy.ndarray:
        shape = [self.random.randrange(0, 5) for _ in range(self.random.randrange(0, 3))]
        if self.random.random() < 0.2:
            shape = [self.random.randrange(50, 300)]
        dtype = numpy.dtype(self.random.choice(TYPES))
        count = int(numpy.prod(shape)) * dtype.itemsize
        data = numpy.frombuffer(bytearray(self.random.randbytes(count)), numpy.uint8)
        if dtype.kind == "b":
            data &= 1
        return data.view(dtype).reshape(shape)

    def _put_slices(self, stores: list[Any], name: str, value: numpy.ndarray) -> None:
        cuts = numpy.linspace(0, len(value), len(stores) + 1).astype(int)
        for store, begin, end in zip(stores, cuts, cuts[1:], strict=False):
            offset = [int(begin)] + [0] * (value.ndim - 1)
            store.put(name, value[begin:end], value.shape, offset)

    def delete(self) -> bool:
        if (chosen := self.group()) is None:
            return False
        group, stores = chosen
        name = self.random.choice(NAMES)
        self.tell(f"delete {name} by {self._title(group)}")
        for store in stores:
            store.delete(name)
        self.model.delete(group, name)
        return True

    def commit(self) -> bool:
        if (chosen := self.group()) is None:
            return False
        self._commit(*chosen)
        return True

    def _commit(self, group: Any, stores: list[Any], victim: Any = None) -> None:
        """All stores of a group commit. In the middle of that a victim may be killed. Then the
        commit may fail, and a commit that fails changes nothing."""
        self.tell(f"commit by {self._title(group)}")
        self.counts["commits of ranks" if group is RANKS else "commits of guests"] += 1
        metadata = {"n": self.model.newest + 1}
        pending = {store: store.commit(metadata, wait=False) for store in stores}
        if victim is not None:
            time.sleep(self.random.choice([0.0, 0.003]) * self.random.random())
            self._kill(victim)
            pending.pop(victim, None)
        number = self._outcome(list(pending.values()))
        if number > self.model.newest:
            self.model.commit(group, number)
        else:
            assert victim is not None, "a commit failed without a cause"
            self.counts["failed commits"] += 1

    def _outcome(self, pending: list[Pending]) -> int:
        """Waits for a commit. Returns the newest version that there is then: that of the commit, if
        it has not failed. All writers are told the same. If none of them lives, others know."""
        told: set[int | None] = set()
        for each in pending:
            try:
                told.add(each.wait(_WAIT_S))
            except Error as error:
                self.tell(f"  it fails: {error!r}")
                told.add(None)
        if not told:
            # The leader hears of the writer's end before the requests that others send from now on.
            # It answers its own requests at once, so there has to be another store.
            for store in self.stores():
                store.info()
            self._settle()
        newest = max((version.number for version in self.anyone().versions()), default=0)
        assert told <= {newest} or (told == {None} and newest == self.model.newest), told
        return newest

    # Reading.

    def get(self) -> bool:
        newest = self.model.newest
        number = self.random.choice([*self.model.kept(), newest, newest, newest - 3, newest + 1])
        name = self.random.choice(list(self.model.history.get(number, {})) or NAMES)
        wanted = "latest" if number == newest and self.random.random() < 0.5 else number
        store = self.anyone()
        self.tell(f"get {name} of {wanted} by {self.name(store)}")
        try:
            if self.model.has(number, name) and self.random.random() < 0.3:
                self._get_part(store, name, wanted, number)
            else:
                self.model.check_tensor(number, name, store.get(name, wanted))
        except Gone:
            self.model.check_gone(number)
        except InvalidArgument:
            self.model.check_missing(number, name)
        return True

    def _get_part(self, store: Any, name: str, wanted: int | str, number: int) -> None:
        whole = self.model.history[number][name].shape
        begin = [self.random.randint(0, n) for n in whole]
        end = [self.random.randint(b, n) for b, n in zip(begin, whole, strict=True)]
        shape = [e - b for b, e in zip(begin, end, strict=True)]
        found = store.get(name, wanted, offset=begin, shape=shape)
        part = tuple(slice(b, e) for b, e in zip(begin, end, strict=True))
        self.model.check_tensor(number, name, found, part)

    def get_all(self) -> bool:
        if not (kept := self.model.kept()):
            return False
        self._get_all(self.anyone(), self.random.choice(kept))
        return True

    def _get_all(self, store: Any, number: int) -> None:
        self.tell(f"get all of {number} by {self.name(store)}")
        found = store.get_state_dict(version=number)
        assert set(found) == set(self.model.history[number])
        for name, value in found.items():
            self.model.check_tensor(number, name, value)

    def update(self) -> bool:
        """Follows from one version to another by deltas."""
        kept = self.model.kept()
        if len(kept) < 2:
            return False
        since, number = sorted(self.random.sample(kept, 2))
        same, store = self.model.alike(since, number), self.anyone()
        self.tell(f"update {same} from {since} to {number} by {self.name(store)}")
        out = {name: self.model.history[since][name].copy() for name in same}
        if self.random.random() < 0.3:
            store.get_state_dict(out, number, since)
        else:
            with store.prepare(number, since, out) as update:
                for name in same:
                    self.model.check_tensor(since, name, out[name])
                self.counts["deltas"] += update.deltas
                update.apply()
        for name in same:
            self.model.check_tensor(number, name, out[name])
        return True

    def list_versions(self) -> bool:
        store = self.anyone()
        self.tell(f"list the versions by {self.name(store)}")
        listed = store.versions()
        self.model.check_listed({each.number: (each.names, each.bytes) for each in listed})
        assert all(each.metadata == {"n": each.number} for each in listed)
        return True

    def lease(self) -> bool:
        kept = self.model.kept()
        if not kept or len(self.leases) >= _MOST_LEASES:
            return False
        number, store = self.random.choice(kept), self.anyone()
        self.tell(f"lease {number} by {self.name(store)}")
        self.leases.append((store, number, store.lease(number)))
        self.model.lease(number)
        return True

    def release(self) -> bool:
        if not self.leases:
            return False
        store, number, lease = self.leases.pop(self.random.randrange(len(self.leases)))
        self.tell(f"release {number} by {self.name(store)}")
        lease.close()
        self.model.release(number)
        return True

    # Those who come and go.

    def join(self) -> bool:
        if len(self.cluster.guests) >= _MOST_GUESTS:
            return False
        hold = self.random.random() < 0.5
        agent = self.cluster.agent_of(self.random.choice(self.ranks))
        self.tell(f"a guest joins, hold={hold}")
        guest = self.cluster.guest(self.random.choice("abcd"), agent.addresses[-1], hold=hold)
        self.tell(f"  it is {self.name(guest)}")
        if hold:
            self.holding.append(guest)
        return True

    def leave(self) -> bool:
        if (store := self._who_goes()) is None:
            return False
        self.tell(f"{self.name(store)} leaves")
        agent = self.cluster.agent_of(store)
        self._forget(store)
        store.close()
        if self.random.random() < 0.5:
            agent.close()
        return True

    def kill(self) -> bool:
        """Kills a rank or a guest, most often in the middle of a commit of its own or of others."""
        if (victim := self._who_goes()) is None:
            return False
        others = len(self.stores()) - 1
        groups = [each for each in self.groups() if each[1] != [victim] or others > 1]
        if groups and self.random.random() < 0.8:
            group, stores = self.random.choice(groups)
            self._commit(group, list(stores), victim)
        else:
            self._kill(victim)
        victim.close()
        return True

    def _kill(self, victim: Any) -> None:
        self.tell(f"{self.name(victim)} is killed")
        self.counts["killed ranks" if victim in self.ranks else "killed guests"] += 1
        agent = self.cluster.agent_of(victim)
        self._forget(victim)
        self.cluster.factory.kill(agent)

    def _who_goes(self) -> Any | None:
        """Someone who may go now. One rank stays, to whose address guests come."""
        ranks = self.ranks if self.mix.ranks_go and len(self.ranks) > 1 else []
        kinds = [kind for kind in (ranks, self.cluster.guests) if kind]
        if not kinds:
            return None
        self._settle()
        return self.random.choice(self.random.choice(kinds))

    def _forget(self, store: Any) -> None:
        for held in [held for held in self.leases if held[0] is store]:
            self.leases.remove(held)
            self.model.release(held[1])
        if store in self.ranks:
            self.ranks.remove(store)
        else:
            self.cluster.guests.remove(store)
        if store in self.holding:
            self.holding.remove(store)

    def _settle(self) -> None:
        """Waits until the store knows who there is, all is decided, and all pieces have their
        replicas: what fails next must not take the last copy."""

        def settled() -> bool:
            info = self.anyone().info()
            whole = info["replicas"]["had"] >= info["replicas"]["wanted"]
            decided = info["leader"] is not None and info["committed"] == info["index"]
            holders = len(self.ranks) + len(self.holding)
            return whole and decided and len(info["holders"]) == holders

        wait_until(settled, _WAIT_S)

    def _check_end(self) -> None:
        """Versions that nobody needs are gone, and everyone reads the others."""
        self._settle()

        def retired() -> bool:
            return [version.number for version in self.anyone().versions()] == self.model.kept()

        wait_until(retired, _WAIT_S)
        for store in self.stores():
            for number in self.model.kept():
                self._get_all(store, number)
