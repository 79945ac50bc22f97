"""A model of the store, and a generator that drives real stores and the model side by side.

The model is what docs/weights.md promises, in a hundred lines: versions are snapshots of all that
was put and not deleted; the newest ``keep`` and the leased ones can be read, by anyone; who leaves
or is killed takes nothing with it, as there are replicas; a commit that fails changes nothing.
"""

from __future__ import annotations

import random
from typing import Any

import numpy
from stores import Cluster, wait_until

from ringcoll.errors import Error, Gone, InvalidArgument

NAMES = [f"layer.{i}" for i in range(6)]
TYPES = ["float32", "float64", "int8", "uint16", "bool", "complex64"]

Tensors = dict[str, numpy.ndarray]


class Model:
    """What the store should be."""

    def __init__(self, keep: int) -> None:
        self.keep = keep
        self.history: dict[int, Tensors] = {}  # all versions that ever were
        self.leases: dict[int, int] = {}
        self.puts: dict[int, Tensors] = {}  # by writers' group
        self.deleted: dict[int, set[str]] = {}

    @property
    def newest(self) -> int:
        return max(self.history, default=0)

    def kept(self) -> list[int]:
        """The versions that can be read for certain."""
        newest = sorted(self.history)[-self.keep :]
        return sorted({*newest, *(n for n, count in self.leases.items() if count)})

    def put(self, group: int, name: str, value: numpy.ndarray) -> None:
        self.puts.setdefault(group, {})[name] = value
        self.deleted.setdefault(group, set()).discard(name)

    def delete(self, group: int, name: str) -> None:
        self.puts.setdefault(group, {}).pop(name, None)
        self.deleted.setdefault(group, set()).add(name)

    def outcome(self, group: int) -> Tensors:
        """What a commit of a group would make."""
        base = {
            name: value
            for name, value in self.history.get(self.newest, {}).items()
            if name not in self.deleted.get(group, set())
        }
        return base | {name: value.copy() for name, value in self.puts.get(group, {}).items()}

    def commit(self, group: int, number: int) -> None:
        assert number == self.newest + 1, f"version {number} came after {self.newest}"
        self.history[number] = self.outcome(group)
        self.puts[group], self.deleted[group] = {}, set()

    def check(self, number: int, name: str, found: Any) -> None:
        expected = self.history[number][name]
        assert found.dtype == expected.dtype and found.shape == expected.shape
        assert found.tobytes() == expected.tobytes(), f"{name} of version {number} is wrong"


class Driver:
    """Makes random operations, and compares what comes of them."""

    def __init__(self, cluster: Cluster, seed: int, keep: int, faults: bool) -> None:
        self.cluster, self.faults = cluster, faults
        self.random = random.Random(seed)
        self.model = Model(keep)
        self.leases: list[Any] = []
        self.lost_ranks: set[int] = set()
        self.operations = 0
        self.counts: dict[str, int] = {}

    def run(self, operations: int) -> None:
        """Makes so many operations."""
        kinds = [
            (self.put, 30),
            (self.commit_ranks, 6),
            (self.commit_guest, 12),
            (self.get, 30),
            (self.get_all, 6),
            (self.list_versions, 6),
            (self.lease, 4),
            (self.release, 4),
            (self.delete, 1),
            (self.update, 5),
            (self.join, 0.6),
            (self.leave, 0.4),
            (self.kill, 0.4 if self.faults else 0),
        ]
        while self.operations < operations:
            ((kind, _),) = self.random.choices(kinds, [weight for _, weight in kinds])
            kind()
            self.operations += 1
            self.counts[kind.__name__] = self.counts.get(kind.__name__, 0) + 1

    # Who there is.

    def anyone(self) -> Any:
        """A living store."""
        ranks = [s for r, s in enumerate(self.cluster.stores) if r not in self.lost_ranks]
        return self.random.choice([*ranks, *self.cluster.guests])

    def value(self) -> numpy.ndarray:
        shape = [self.random.randrange(0, 5) for _ in range(self.random.randrange(0, 3))]
        data = numpy.frombuffer(self.random.randbytes(16 * 25), numpy.uint8)
        dtype = numpy.dtype(self.random.choice(TYPES))
        count = int(numpy.prod(shape)) * dtype.itemsize
        if dtype.kind == "b":
            data = data & 1
        return data[:count].copy().view(dtype).reshape(shape)

    def group(self) -> tuple[int, list[Any]] | None:
        """A writers' group: the ranks, or a guest."""
        groups = [(id(guest), [guest]) for guest in self.cluster.guests]
        if not self.lost_ranks:
            groups.append((0, self.cluster.stores))
        return self.random.choice(groups) if groups else None

    # Operations.

    def put(self) -> None:
        chosen = self.group()
        if chosen is None:
            return
        group, stores = chosen
        name, value = self.random.choice(NAMES), self.value()
        if len(stores) > 1 and value.ndim and len(value) >= len(stores):
            self._put_slices(stores, name, value)
        else:
            for store in stores:
                store.put(name, value)
        self.model.put(group, name, value)

    def _put_slices(self, stores: list[Any], name: str, value: numpy.ndarray) -> None:
        cuts = numpy.linspace(0, len(value), len(stores) + 1).astype(int)
        for store, begin, end in zip(stores, cuts, cuts[1:], strict=False):
            offset = [int(begin)] + [0] * (value.ndim - 1)
            store.put(name, value[begin:end], value.shape, offset)

    def delete(self) -> None:
        chosen = self.group()
        if chosen is None:
            return
        name = self.random.choice(NAMES)
        for store in chosen[1]:
            store.delete(name)
        self.model.delete(chosen[0], name)

    def commit_ranks(self) -> None:
        if not self.lost_ranks:
            self.model.commit(0, self.cluster.commit())

    def commit_guest(self) -> None:
        if self.cluster.guests:
            guest = self.random.choice(self.cluster.guests)
            self.model.commit(id(guest), guest.commit({"n": self.model.newest + 1}))

    def get(self) -> None:
        newest = self.model.newest
        number = self.random.choice([*self.model.kept(), newest, newest, newest - 3, newest + 1])
        names = list(self.model.history.get(number, {})) or NAMES
        name = self.random.choice(names)
        store = self.anyone()
        wanted = "latest" if number == newest and self.random.random() < 0.5 else number
        try:
            found = store.get(name, wanted)
        except Gone:
            assert number not in self.model.kept(), f"version {number} was lost"
        except InvalidArgument:
            assert name not in self.model.history.get(number, {})
        else:
            self.model.check(number, name, found)

    def get_all(self) -> None:
        kept = self.model.kept()
        if not kept:
            return
        number = self.random.choice(kept)
        found = self.anyone().get_state_dict(version=number)
        assert set(found) == set(self.model.history[number])
        for name, value in found.items():
            self.model.check(number, name, value)

    def update(self) -> None:
        """Follows from one version to another by deltas."""
        kept = self.model.kept()
        if len(kept) < 2:
            return
        since, number = sorted(self.random.sample(kept, 2))
        old, new = self.model.history[since], self.model.history[number]
        same = [
            n
            for n in new
            if n in old and (old[n].dtype, old[n].shape) == (new[n].dtype, new[n].shape)
        ]
        out = {name: old[name].copy() for name in same}
        self.anyone().prepare(number, since, out).apply()
        for name in same:
            self.model.check(number, name, out[name])

    def list_versions(self) -> None:
        numbers = [version.number for version in self.anyone().versions()]
        assert set(self.model.kept()) <= set(numbers), f"{numbers}, not {self.model.kept()}"
        assert set(numbers) <= set(self.model.history)

    def lease(self) -> None:
        kept = self.model.kept()
        if kept and len(self.leases) < 4:
            number = self.random.choice(kept)
            store = self.anyone()
            self.leases.append((store, number, store.lease(number)))
            self.model.leases[number] = self.model.leases.get(number, 0) + 1

    def release(self) -> None:
        if self.leases:
            _, number, lease = self.leases.pop(self.random.randrange(len(self.leases)))
            lease.close()
            self.model.leases[number] -= 1

    # Those who come and go.

    def join(self) -> None:
        if len(self.cluster.guests) < 4:
            living = [s for r, s in enumerate(self.cluster.stores) if r not in self.lost_ranks]
            address = living[0].address if living[0] is self.cluster.stores[0] else None
            address = address or self.cluster.agent_of(living[0]).addresses[-1]
            hold = self.random.random() < 0.5
            self.cluster.guest(self.random.choice("abc"), address, hold=hold)

    def leave(self) -> None:
        if self.cluster.guests:
            self._settle()
            guest = self.random.choice(self.cluster.guests)
            self._forget(guest)
            guest.close()

    def kill(self) -> None:
        """Kills a rank or guest, perhaps while another guest commits."""
        ranks = [r for r in range(len(self.cluster.stores)) if r not in self.lost_ranks]
        victims = [*(self.cluster.stores[r] for r in ranks[1:]), *self.cluster.guests]
        if len(ranks) > 2:
            victims.append(self.cluster.stores[ranks[0]])
        if not victims:
            return
        self._settle()
        victim = self.random.choice(victims)
        agent = self.cluster.agent_of(victim)
        others = [guest for guest in self.cluster.guests if guest is not victim]
        self._forget(victim)
        if others and self.random.random() < 0.7:
            self._commit_during(others[0], lambda: self.cluster.factory.kill(agent))
        else:
            self.cluster.factory.kill(agent)
        victim.close()

    def _commit_during(self, guest: Any, fault: Any) -> None:
        """A commit in whose middle something fails. It may fail itself, and then changes
        nothing."""
        name, value = self.random.choice(NAMES), self.value()
        guest.put(name, value)
        self.model.put(id(guest), name, value)
        pending = guest.commit(wait=False)
        fault()
        try:
            self.model.commit(id(guest), pending.wait(30.0))
        except Error as error:
            self.counts[type(error).__name__] = self.counts.get(type(error).__name__, 0) + 1
            numbers = [version.number for version in self.anyone().versions()]
            assert max(numbers, default=0) == self.model.newest

    def _forget(self, store: Any) -> None:
        for held in [held for held in self.leases if held[0] is store]:
            self.leases.remove(held)
            self.model.leases[held[1]] -= 1
        if store in self.cluster.guests:
            self.cluster.guests.remove(store)
        else:
            self.lost_ranks.add(self.cluster.stores.index(store))

    def _settle(self) -> None:
        """Waits until all pieces have their replicas: what fails next must not take the last
        copy."""

        def settled() -> bool:
            replicas = self.anyone().info()["replicas"]
            return bool(replicas["had"] >= replicas["wanted"]) or not self.model.newest

        wait_until(settled, 30.0)
