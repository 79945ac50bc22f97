"""A process with a store and tables, which does what it is told: one JSON object a line, answered
by one.

Arguments: "rank", its number, the number of ranks, a folder and replicas; "found", the store's name
and replicas; "join" or "visit", and the store's address.
"""

from __future__ import annotations

import json
import mmap
import resource
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy

import ringcoll
from ringcoll import rules

RULES = {
    "sum": rules.Sum,
    "assign": rules.Assign,
    "sgd": lambda: rules.SGD(lr=0.1, momentum=0.9),
    "adam": lambda: rules.Adam(lr=0.01),
}


def open_store(kind: str, *words: str) -> ringcoll.Store:
    if kind == "rank":
        rank, size, folder, replicas = int(words[0]), int(words[1]), words[2], int(words[3])
        world = ringcoll.init(rank, size, f"file://{folder}")
        return ringcoll.Store("w", world, key="key", replicas=replicas, timeout=30)
    if kind == "found":
        agent = ringcoll.serve(words[0], "key")
        return ringcoll.Store(words[0], agent, key="key", replicas=int(words[1]), timeout=30)
    guest = ringcoll.connect(words[0], "key")
    name = words[0].rpartition("/")[2]
    return ringcoll.Store(name, guest, hold=kind == "join", timeout=30)


class Pusher(threading.Thread):
    """Adds 1 to one column of some rows again and again, or to one row of a dense table. What it
    began and what was acknowledged is in a file that outlives this process: two int64."""

    def __init__(self, table: Any, column: int, ids: list[int] | None, notes: str) -> None:
        super().__init__(daemon=True)
        self._table, self._ids = table, ids
        shape = table.shape or (len(ids or ()), *table.row_shape)
        self._values = numpy.zeros(shape, table.dtype)
        self._values[..., column] = 1
        with open(notes, "wb+") as file:
            file.truncate(16)
            self._notes = numpy.frombuffer(mmap.mmap(file.fileno(), 16), numpy.int64)
        self.slowest, self.error, self.stopping = 0.0, "", False

    def run(self) -> None:
        try:
            while not self.stopping:
                begin = time.monotonic()
                self._notes[0] += 1
                self._table.push(self._ids, self._values)
                self._notes[1] += 1
                self.slowest = max(self.slowest, time.monotonic() - begin)
        except ringcoll.Error as error:
            self.error = f"{type(error).__name__}: {error}"


class Member:
    def __init__(self, *words: str) -> None:
        self.store = open_store(*words)
        self.tables: dict[str, Any] = {}
        self.pushers: list[Pusher] = []

    def door(self) -> str | None:
        """Where this process admits guests, if it does."""
        if self.store.address is not None:
            return str(self.store.address)
        info = self.store.info()
        mine = info["holders"].get(info["this"]["id"])
        return str(mine["addresses"][0]) if mine is not None else None

    def table(self, name: str, rule: str = "sum", **arguments: Any) -> int | None:
        self.tables[name] = self.store.table(name, rule=RULES[rule](), **arguments)
        return self.tables[name].clock

    def find(self, name: str) -> None:
        self.tables[name] = self.store.table(name)

    def operate(self, calls: list[list[Any]], notes: str) -> list[Any]:
        """Makes calls one after another: "push", "pull", "push_pull" or "tick", the table, ids and
        values. How many were answered is in a file that outlives this process. Returns the values
        that were pulled, and None for other calls."""
        answers = []
        with open(notes, "rb+") as file:
            done = numpy.frombuffer(mmap.mmap(file.fileno(), 8), numpy.int64)
        for what, name, ids, values in calls:
            table = self.tables[name]
            found = None
            if what == "tick":
                table.tick()
            elif what == "pull":
                found = table.pull(ids)
            else:
                found = getattr(table, what)(ids, numpy.asarray(values, table.dtype))
            answers.append(None if found is None else found.tolist())
            done[0] += 1
        return answers

    def begin(self, name: str, column: int, ids: list[int] | None, notes: str) -> None:
        """Pushes from now on."""
        self.pushers.append(Pusher(self.tables[name], column, ids, notes))
        self.pushers[-1].start()

    def end(self) -> list[Any]:
        """Pushes no more: for each pusher its slowest push in seconds, and its error or ""."""
        pushers, self.pushers = self.pushers, []
        for pusher in pushers:
            pusher.stopping = True
        for pusher in pushers:
            pusher.join()
        return [[pusher.slowest, pusher.error] for pusher in pushers]

    def push(self, name: str, ids: list[int] | None, values: Any) -> float:
        """How many seconds it took."""
        begin = time.monotonic()
        table = self.tables[name]
        table.push(ids, numpy.asarray(values, table.dtype))
        return time.monotonic() - begin

    def pull(self, name: str, ids: list[int] | None = None) -> Any:
        """All rows that differ. There is one, if all pushes were alike for all rows."""
        return numpy.unique(self.tables[name].pull(ids), axis=0).tolist()

    def run(self, text: str) -> Any:
        """Runs statements with this object as ``me``; returns what they call ``result``."""
        names: dict[str, Any] = {"me": self, "numpy": numpy, "ringcoll": ringcoll, "time": time}
        exec(text, names)
        return names.get("result")

    def info(self, name: str) -> Any:
        return self.tables[name].info()

    def store_info(self) -> Any:
        return self.store.info()

    def limit(self, more: int | None = None) -> None:
        """Limits this process to the memory that it has, and so many bytes more."""
        most = resource.getrlimit(resource.RLIMIT_AS)[1]
        if more is not None:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            more += pages * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (most if more is None else more, most))

    def usage(self) -> Any:
        """What this process has of the things that must not pile up."""
        agent = self.store._control.endpoint.agent
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return {
            "regions": json.loads(agent.native.stats())["regions"],
            "files": len(list(Path("/proc/self/fd").iterdir())),
            "threads": len(list(Path("/proc/self/task").iterdir())),
            "bytes": pages * resource.getpagesize(),
        }

    def close(self) -> None:
        self.store.close()


def main() -> None:
    member = Member(*sys.argv[1:])
    print(json.dumps(member.door()), flush=True)
    for line in sys.stdin:
        word, arguments = json.loads(line)
        try:
            answer = {"value": getattr(member, word)(**arguments)}
        except Exception as error:
            answer = {"error": type(error).__name__, "text": str(error)}
        print(json.dumps(answer), flush=True)


main()
