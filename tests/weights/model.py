"""A model of the store: what docs/weights.md promises, as plain data.

Versions are snapshots of all that was put and not deleted. Anyone can read the newest ``keep`` of
them, and the leased ones. Whoever leaves or is killed takes nothing with it, as there are replicas.
A commit that fails changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Any

import numpy

Tensors = dict[str, numpy.ndarray]


class Model:
    """What the store should be. A group is whatever names a writers' group."""

    def __init__(self, keep: int) -> None:
        self.keep = keep
        self.newest = 0
        self.history: dict[int, Tensors] = {}  # all versions that ever were
        self._leases: Counter[int] = Counter()
        self._puts: dict[Hashable, Tensors] = {}
        self._deleted: dict[Hashable, set[str]] = {}

    # Writing.

    def put(self, group: Hashable, name: str, value: numpy.ndarray) -> None:
        """Remembers a tensor itself: what it has at the time of the commit counts."""
        self._puts.setdefault(group, {})[name] = value
        self._deleted.setdefault(group, set()).discard(name)

    def delete(self, group: Hashable, name: str) -> None:
        self._puts.setdefault(group, {}).pop(name, None)
        self._deleted.setdefault(group, set()).add(name)

    def commit(self, group: Hashable, number: int) -> None:
        """A commit of a group has made a version."""
        assert number == self.newest + 1, f"version {number} came after {self.newest}"
        deleted, puts = self._deleted.pop(group, set()), self._puts.pop(group, {})
        before = self.history.get(self.newest, {})
        carried = {name: value for name, value in before.items() if name not in deleted}
        self.history[number] = carried | {name: value.copy() for name, value in puts.items()}
        self.newest = number

    # Reading.

    def kept(self) -> list[int]:
        """The versions that can be read for certain."""
        newest = range(max(1, self.newest - self.keep + 1), self.newest + 1)
        return sorted({*newest, *(number for number, count in self._leases.items() if count)})

    def lease(self, number: int) -> None:
        self._leases[number] += 1

    def release(self, number: int) -> None:
        self._leases[number] -= 1

    def has(self, number: int, name: str) -> bool:
        return name in self.history.get(number, {})

    def alike(self, since: int, number: int) -> list[str]:
        """The names that have one type and shape in two versions."""
        before = {name: (t.dtype, t.shape) for name, t in self.history[since].items()}
        now = self.history[number].items()
        return [name for name, t in now if before.get(name) == (t.dtype, t.shape)]

    # What the store has answered.

    def check_tensor(self, number: int, name: str, found: Any, part: Any = ...) -> None:
        """A tensor, or a part of it, was read."""
        expected = self.history[number][name][part]
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert found.tobytes() == expected.tobytes(), f"{name} of version {number} is wrong"

    def check_gone(self, number: int) -> None:
        """A version was said to be kept no more."""
        assert number not in self.kept(), f"version {number} was lost"

    def check_missing(self, number: int, name: str) -> None:
        """A version was said to have no such tensor, or never to have been."""
        assert not self.has(number, name), f"{name} of version {number} is missing"

    def check_listed(self, listed: dict[int, tuple[int, int]]) -> None:
        """Versions were listed, each with its number of tensors and bytes."""
        assert set(self.kept()) <= set(listed), f"{sorted(listed)}, not {self.kept()}"
        for number, facts in listed.items():
            tensors = self.history[number].values()
            assert facts == (len(tensors), sum(value.nbytes for value in tensors))
