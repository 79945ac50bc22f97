"""One-sided copies by NIXL, with its defaults: UCX and a thread for progress.

A transfer is prepared once for each way and size, as its users do, then posted and polled.
"""

from __future__ import annotations

import json
from typing import Any

import one_sided
from nixl_cu12._api import nixl_agent


class Side:
    def __init__(self, name: str, size: int) -> None:
        self.agent = nixl_agent(name)
        self.memory = self.local = one_sided.memory(size)
        self.registered = self.agent.register_memory([(self.base, size, 0, "")], "DRAM")

    @property
    def base(self) -> int:
        return int(self.memory.ctypes.data)

    def close(self) -> None:
        self.agent.deregister_memory(self.registered)


class Owner(Side):
    def __init__(self, start: one_sided.Start) -> None:
        super().__init__("owner", start.most_bytes)
        found = {"metadata": self.agent.get_agent_metadata().hex(), "base": self.base}
        start.publish("owner", json.dumps(found).encode())


class User(Side):
    def __init__(self, start: one_sided.Start) -> None:
        super().__init__("user", start.most_bytes)
        found = json.loads(start.expect("owner"))
        self._owner = self.agent.add_remote_agent(bytes.fromhex(found["metadata"]))
        self._there = found["base"]
        self._prepared: dict[tuple[str, int], Any] = {}

    def _prepare(self, way: str, size: int) -> Any:
        here, there = (
            self.agent.get_xfer_descs(
                [(base + p.start, p.stop - p.start, 0) for p in one_sided.pieces(way, size)], "DRAM"
            )
            for base in (self.base, self._there)
        )
        operation = "READ" if one_sided.is_read(way) else "WRITE"
        return self.agent.initialize_xfer(operation, here, there, self._owner)

    def copy(self, way: str, size: int) -> None:
        transfer = self._prepared.get((way, size))
        if transfer is None:
            transfer = self._prepared[way, size] = self._prepare(way, size)
        state = self.agent.transfer(transfer)
        while state == "PROC":
            state = self.agent.check_xfer_state(transfer)
        if state != "DONE":
            raise RuntimeError(f"{way} of {size} bytes: {state}")

    def close(self) -> None:
        for transfer in self._prepared.values():
            transfer.release()
        super().close()


if __name__ == "__main__":
    begun = one_sided.Start()
    one_sided.serve(begun, User(begun) if begun.is_user else Owner(begun))
