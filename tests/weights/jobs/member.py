"""A process with a store, which does what it is told: one JSON object a line, answered by one.

Arguments: "found", "join" or "visit"; the store's name or address; replicas (0 or more).
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy

import ringcoll


def values(seed: int, size: int) -> numpy.ndarray:
    return numpy.random.default_rng(seed).integers(0, 1 << 32, size // 4, "uint32")


class Member:
    def __init__(self, how: str, where: str, replicas: int) -> None:
        if how == "found":
            agent = ringcoll.serve(where, "key")
            self.store = ringcoll.Store(where, agent, key="key", replicas=replicas, keep=3)
            self.address = str(self.store.address)
        else:
            self.address = where
            guest = ringcoll.connect(where, "key")
            name = where.rpartition("/")[2]
            self.store = ringcoll.Store(name, guest, hold=how == "join")
        self.pending: Any = None

    def put(self, tensors: dict[str, int], size: int) -> None:
        for name, seed in tensors.items():
            self.store.put(name, values(seed, size))

    def commit(self, timeout: float = 30) -> int:
        return int(self.store.commit(timeout=timeout))

    def sums(self, version: Any = "latest", timeout: float = 20) -> Any:
        """The number and the sums of all tensors, and how long it took."""
        begin = time.monotonic()
        with self.store.lease(version, timeout) as number:
            return self._read(number, timeout, begin)

    def read(self, timeout: float = 20) -> Any:
        """The same of the newest version, without a lease: so it needs no leader."""
        begin = time.monotonic()
        return self._read(self.store.versions(timeout)[-1].number, timeout, begin)

    def _read(self, number: int, timeout: float, begin: float) -> Any:
        found = self.store.get_state_dict(version=number, timeout=timeout)
        sums = {name: int(tensor.sum(dtype="uint64")) for name, tensor in found.items()}
        return number, sums, time.monotonic() - begin

    def limit(self, kind: str, more: int | None = None) -> None:
        """Limits this process: "AS", its memory, to what it has and so many bytes more; "FSIZE",
        each file that it writes, and so each piece of shared memory. None: no limit."""
        number = getattr(resource, f"RLIMIT_{kind}")
        if more is not None and kind == "AS":
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            more += pages * resource.getpagesize()
        most = resource.getrlimit(number)[1]
        resource.setrlimit(number, (most if more is None else more, most))

    def versions(self) -> list[int]:
        return [version.number for version in self.store.versions()]

    def info(self) -> Any:
        return self.store.info()


def main() -> None:
    member = Member(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    print(json.dumps(member.address), flush=True)
    for line in sys.stdin:
        word, arguments = json.loads(line)
        try:
            answer = {"value": getattr(member, word)(**arguments)}
        except (ringcoll.Error, MemoryError, OSError) as error:
            answer = {"error": type(error).__name__, "text": str(error)}
        print(json.dumps(answer), flush=True)


main()
