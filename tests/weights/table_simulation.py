"""The simulated network of simulation.py with shards of tables: each process has copies of shards,
and does with them what a server does (ringcoll/tables/serving.py and the library). A push is a
number, and a copy the set of those that it has.

A primary sends what it has to all backups, with the epoch of the shard, and acknowledges a push
when all of them have it. A backup refuses what comes with a lower epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from simulation import Client, Process, Simulation

from ringcoll.tables.serving import shards_of
from ringcoll.weights.catalog_tables import is_lost

Key = tuple[str, int]  # a table's uid and the shard's number


@dataclass
class Copy:
    """A shard in a process."""

    filling: bool
    epoch: int = 0
    leads: bool = False
    holders: list[str] = field(default_factory=list)  # the others that must have all pushes
    optional: str | None = None  # the holder that is being filled
    pushes: set[int] = field(default_factory=set)
    others: dict[str, set[int]] = field(default_factory=dict)  # what others have of this epoch


class TableProcess(Process):
    """A holder that serves shards."""

    sim: TableSimulation

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.copies: dict[Key, Copy] = {}
        self.tables: dict[Key, tuple[str, dict[str, Any]]] = {}
        self.uses: dict[Key, int] = {}
        self.followed: Any = None  # the view of the tables
        self.serves_until = 0.0

    def do(self, task: dict[str, Any]) -> None:
        if task["do"] != "tables":
            super().do(task)
            return
        self.sim.at(self.sim.delay() * 3, lambda: self.run(self.follow))

    def tick(self) -> None:
        super().tick()
        if self.alive and not self.stopped:
            self.run(self.send_all)
            self.run(self.go_on)

    def deliver(self, source: str, message: dict[str, Any]) -> None:
        if message.get("k") == "sync":
            self._on_sync(source, message)
        elif message.get("k") == "synced":
            self._on_synced(source, message)
        else:
            super().deliver(source, message)

    def go_on(self) -> None:
        """Serves as long as the replica allows it, if all that it knows is committed
        and was done."""
        replica = self.node.replica
        if replica.tables(replica.index) is self.followed:
            self.serves_until = replica.serves_until

    def follow(self) -> None:
        """Does what the catalog says, as far as it is committed."""
        view = self.followed = self.node.replica.tables(self.node.replica.committed)
        wanted = shards_of(view, self.name)
        self.tables = {
            key: (record["spec"]["name"], state) for key, (record, state) in wanted.items()
        }
        self.copies = {key: copy for key, copy in self.copies.items() if key in wanted}
        for key, (_, shard) in wanted.items():
            if self.name not in shard["away"]:
                self._take_part(key, shard)
        self.node.shards = {}
        for (uid, index), copy in self.copies.items():
            if not copy.filling:
                epoch = wanted[uid, index][1]["epoch"]
                self.node.shards.setdefault(uid, {})[str(index)] = epoch

    def _take_part(self, key: Key, shard: dict[str, Any]) -> None:
        filling = shard["filling"] == self.name
        copy = self.copies.get(key)
        if copy is None or (filling and not copy.filling):
            copy = self.copies[key] = Copy(filling)
        copy.filling = filling
        if shard["epoch"] <= copy.epoch and copy.leads == (shard["holders"][:1] == [self.name]):
            return
        copy.epoch = max(copy.epoch, shard["epoch"])
        copy.leads = shard["holders"][:1] == [self.name]
        copy.holders, copy.optional, copy.others = shard["holders"][1:], shard["filling"], {}
        if copy.leads:
            self.sim.note_primary(key, shard["epoch"], self.name)

    def push(self, key: Key, number: int) -> None:
        """A client's push comes."""
        copy = self.copies.get(key)
        if copy is not None and copy.leads:
            copy.pushes.add(number)
            self.uses[key] = self.uses.get(key, 0) + 1
            self._acknowledge(key, copy)
            self._send(key, copy)

    def pull(self, key: Key) -> None:
        """A client's pull comes: it is shown what was acknowledged before."""
        copy = self.copies.get(key)
        if copy is None or not copy.leads:
            return
        if (copy.holders or copy.optional) and self.sim.now >= self.serves_until:
            return
        self.sim.pulls += 1
        lacking = self.sim.acknowledged.get(key, set()) - copy.pushes
        assert not lacking, f"{self.name} shows {key} without {lacking}"

    def send_all(self) -> None:
        """Sends again what may have been lost."""
        for key, copy in self.copies.items():
            if copy.leads:
                self._send(key, copy)
                done = copy.others.get(copy.optional or "")
                if copy.optional and done is not None:
                    self._tell_filled(key, copy)
        uses, self.uses = self.uses, {}
        if uses and self.node.replica.leader:
            message: dict[str, Any] = {"k": "used", "uses": {}}
            for (uid, index), times in uses.items():
                message["uses"].setdefault(uid, {})[str(index)] = times
            self.node.out.append((self.node.replica.leader, message))

    def _send(self, key: Key, copy: Copy) -> None:
        message = {
            "k": "sync",
            "key": list(key),
            "epoch": copy.epoch,
            "pushes": sorted(copy.pushes),
        }
        for other in [*copy.holders, *([copy.optional] if copy.optional else [])]:
            if copy.others.get(other) != copy.pushes:
                self.sim.send(self.name, other, message)

    def _tell_filled(self, key: Key, copy: Copy) -> None:
        leader = self.node.replica.leader
        if leader is not None:
            message = {"k": "filled", "uid": key[0], "shard": key[1], "epoch": copy.epoch}
            self.node.out.append((leader, message | {"holder": copy.optional}))

    def _on_sync(self, source: str, message: dict[str, Any]) -> None:
        key = (message["key"][0], message["key"][1])
        copy = self.copies.get(key)
        if copy is None or message["epoch"] < copy.epoch:
            return
        if copy.leads and message["epoch"] == copy.epoch:
            raise AssertionError(f"two primaries of {key} at epoch {copy.epoch}")
        if message["epoch"] > copy.epoch:
            copy.epoch, copy.leads = message["epoch"], False
            copy.pushes = set()
        copy.pushes |= set(message["pushes"])
        answer = {"k": "synced", "key": list(key), "epoch": copy.epoch}
        self.sim.send(self.name, source, answer | {"pushes": sorted(copy.pushes)})

    def _on_synced(self, source: str, message: dict[str, Any]) -> None:
        key = (message["key"][0], message["key"][1])
        copy = self.copies.get(key)
        if copy is not None and copy.leads and message["epoch"] == copy.epoch:
            copy.others.setdefault(source, set()).update(message["pushes"])
            self._acknowledge(key, copy)

    def _acknowledge(self, key: Key, copy: Copy) -> None:
        """A push counts when all have it: also the one that is being filled, once it has a copy."""
        needed = list(copy.holders)
        if copy.optional in copy.others:
            needed.append(str(copy.optional))
        having = [copy.others.get(other, set()) for other in needed]
        self.sim.acknowledged.setdefault(key, set()).update(copy.pushes.intersection(*having))


class TableSimulation(Simulation):
    """A simulation with clients that push, and what must hold of shards."""

    process = TableProcess

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.acknowledged: dict[Key, set[int]] = {}
        self.primaries: dict[tuple[Key, int], str] = {}
        self.pulls = 0
        self.lost = 0  # shards
        self.dropped = 0  # tables
        self._states: dict[Key, dict[str, Any]] = {}
        self._next = 0

    def note_primary(self, key: Key, epoch: int, name: str) -> None:
        """A process leads a shard at an epoch."""
        first = self.primaries.setdefault((key, epoch), name)
        assert first == name, f"{first} and {name} are primaries of {key} at epoch {epoch}"

    def push_all(self, chance: float) -> None:
        """Pushes to processes that take themselves to be primaries, and pulls from them."""
        for process in self.processes.values():
            for key in list(process.copies):
                if self.random.random() < chance:
                    self._next += 1
                    number = self._next
                    process.run(lambda p=process, k=key, n=number: p.push(k, n))
                process.run(lambda p=process, k=key: p.pull(k))

    def check_leader(self, node: Any) -> None:
        """A shard is only lost if all that had it have ended."""
        super().check_leader(node)
        if not node.replica.leads:
            return
        for record in node.replica.tables(node.replica.committed).values():
            for index, state in enumerate(record["shards"]):
                self._note_state((record["uid"], index), state)

    def _note_state(self, key: Key, state: dict[str, Any]) -> None:
        before = self._states.get(key)
        if before == state or (before is not None and before["epoch"] > state["epoch"]):
            return
        self._states[key] = state
        if before is not None and is_lost(state) and state["epoch"] <= before["epoch"] + 1:
            self.lost += 1
            had = [*before["holders"], *before["away"]]
            alive = [name for name in had if self.processes[name].alive]
            claimed = [name for name in alive if key in self.processes[name].copies]
            assert not claimed, f"{key} was lost, and {claimed} have it"

    def make_table(self, process: Process, name: str, shards: int | None) -> None:
        """A program makes a table."""
        body: dict[str, Any] = {"q": "table", "name": name, "spec": {"name": name}, "rows": None}
        self._next += 1
        body |= {"uid": f"{name}.{self._next}", "workers": [], "shards": shards}
        Client(process).ask(body, 60.0, lambda answer: None)

    def drop_table(self, process: Process, name: str) -> None:
        """A program drops a table."""

        def count(answer: dict[str, Any]) -> None:
            self.dropped += "error" not in answer

        Client(process).ask({"q": "drop_table", "name": name}, 60.0, count)
