"""One-sided copies by ringcoll.

Words: the memory of the owner, "mapped" (ringcoll.empty) or "plain" (the caller's); then "apart" if
both ranks are to take each other for another host's, so that bytes go over TCP.

A way read-N reads from the first N owners, which have the same bytes. A way read/N is one call that
has a copy for each piece.
"""

from __future__ import annotations

import json
import os
from typing import Any

import one_sided


class Owner:
    def __init__(self, start: one_sided.Start) -> None:
        import ringcoll

        size = start.most_bytes
        mapped = start.words[0] == "mapped"
        self.memory = ringcoll.empty(size, "uint8") if mapped else one_sided.memory(size)
        self._agent = ringcoll.serve("perf", "key")
        self._region = self._agent.register(self.memory, writable=True)
        found = {"addresses": self._agent.addresses, "handle": self._region.handle().hex()}
        start.publish(f"owner{start.rank}", json.dumps(found).encode())

    def close(self) -> None:
        self._region.close()
        self._agent.close()


class User:
    def __init__(self, start: one_sided.Start) -> None:
        import ringcoll

        self._read_of = ringcoll.remote.Read
        self.local = one_sided.memory(start.most_bytes)
        owners = [json.loads(start.expect(f"owner{rank}")) for rank in range(start.owners)]
        self._handles = [bytes.fromhex(owner["handle"]) for owner in owners]
        self._agent = ringcoll.connect(owners[0]["addresses"][0], key="key")
        self._views: dict[int, Any] = {}
        self._batches: dict[tuple[str, int], list[Any]] = {}

    def copy(self, way: str, size: int) -> None:
        local = self._views.get(size)
        if local is None:
            local = self._views[size] = self.local[:size]
        if way == "read":
            self._agent.read(self._handles[0], local)
        elif way == "write":
            self._agent.write(self._handles[0], local)
        else:
            self._agent.transfer(self._batch(way, size))

    def _batch(self, way: str, size: int) -> list[Any]:
        found = self._batches.get((way, size))
        if found is None:
            owners = int(way.removeprefix("read-")) if way.startswith("read-") else 1
            found = self._batches[way, size] = [
                self._read_of(
                    self.local[piece], [(handle, piece.start) for handle in self._handles[:owners]]
                )
                for piece in one_sided.pieces(way, size)
            ]
        return found

    def close(self) -> None:
        self._agent.close()


if __name__ == "__main__":
    begun = one_sided.Start()
    if "apart" in begun.words:
        os.environ["RINGCOLL_HOSTID"] = f"host{begun.rank}"
    one_sided.serve(begun, User(begun) if begun.is_user else Owner(begun))
