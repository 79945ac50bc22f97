"""One-sided copies by ringcoll.

Words: the memory of the owner, "mapped" (ringcoll.empty) or "plain" (the caller's); then "apart" if
both ranks are to take each other for another host's, so that bytes go over TCP.

A way read-N reads from the first N owners, which have the same bytes.
"""

from __future__ import annotations

import json
import os

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
        self._views: dict[int, object] = {}

    def copy(self, way: str, size: int) -> None:
        local = self._views.get(size)
        if local is None:
            local = self._views[size] = self.local[:size]
        if way == "read":
            self._agent.read(self._handles[0], local)
        elif way == "write":
            self._agent.write(self._handles[0], local)
        else:
            sources = self._handles[: int(way.removeprefix("read-"))]
            self._agent.transfer([self._read_of(local, sources)])

    def close(self) -> None:
        self._agent.close()


if __name__ == "__main__":
    begun = one_sided.Start()
    if "apart" in begun.words:
        os.environ["RINGCOLL_HOSTID"] = f"host{begun.rank}"
    one_sided.serve(begun, User(begun) if begun.is_user else Owner(begun))
