"""Saves tables for a commit, and reads them again. Names and layout are those of
ringcoll/weights/saved_tables.py.

The ranks of a commit share the shards out. Each asks the server that leads a shard, which copies
its rows; the rank reads that copy when the commit copies tensors.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy

from ringcoll import _core
from ringcoll.errors import Error, Timeout
from ringcoll.weights import agents
from ringcoll.weights.catalog_tables import Json
from ringcoll.weights.saved_tables import PREFIX, Array, arrays_of, shard_prefix

if TYPE_CHECKING:
    from ringcoll.weights.control import Control

_ASK_S = 30.0
_AGAIN_S = 0.05

Read = Callable[[int, list[str]], Mapping[str, Any]]


class SavedArray(NamedTuple):
    """An array of a shard, and a function that reads its bytes."""

    array: Array
    source: Callable[[], numpy.ndarray]


class Saver:
    """Saves shards for one commit. ``info`` describes this process (:func:`agents.describe`)."""

    def __init__(self, control: Control, agent: Any, info: Json, deadline: float) -> None:
        self._control, self._session = control, control.session
        self._agent, self._info = agent, info
        self._deadline = deadline
        self._done: list[tuple[str, int]] = []  # servers, and what they keep for this commit
        self.arrays: list[SavedArray] = []

    def save(self, tables: Mapping[str, Json], rank: int, size: int) -> None:
        """Adds the arrays of every ``size``-th shard of these tables, from ``rank`` on."""
        number = 0
        for name, record in sorted(tables.items()):
            facts = facts_of(record)
            for index in range(len(record["shards"])):
                if number % size == rank:
                    cut = facts["cuts"][index] if facts["cuts"] else ()
                    self.arrays += self._save_shard(name, index, record, cut)
                number += 1

    def close(self) -> None:
        """Servers free what they have copied."""
        for server, token in self._done:
            self._control.send(server, {"q": "saved", "token": token, "r": 0})

    def _save_shard(self, name: str, index: int, record: Json, cut: Any) -> list[SavedArray]:
        while True:
            for server in record["shards"][index]["holders"][:1]:
                request = {"q": "save", "uid": record["uid"], "shard": index}
                try:
                    answer = self._session.ask(server, request, self._left())
                except Error:
                    answer = None  # another one leads it now
                if answer is not None:
                    self._done.append((server, answer["token"]))
                    arrays = arrays_of(name, index, record["spec"], cut, json.loads(answer["said"]))
                    return [SavedArray(each, self._reader(each, answer)) for each in arrays]
            time.sleep(_AGAIN_S)
            request = {"q": "table", "name": name, "spec": None, "shards": None}
            record = self._session.request(request, self._left())["table"]

    def _reader(self, array: Array, answer: Json) -> Callable[[], numpy.ndarray]:
        handle = agents.decode(answer["region"])
        holder, there = answer["holder"], answer["info"]
        far = agents.distance(self._info, self._control.me, there, holder)

        def read() -> numpy.ndarray:
            data = numpy.empty(array.bytes, numpy.uint8)
            if array.bytes:
                agents.read(self._agent, [(data, [(handle, array.start, far)])], self._left())
            return data

        return read

    def _left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise Timeout("servers of tables have not copied their shards before the deadline")
        return min(left, _ASK_S)


def facts_of(record: Json) -> Json:
    """What ringcoll_table_describe says of a table."""
    facts: Json = json.loads(
        _core.table_describe(json.dumps(record["spec"]), len(record["shards"]))
    )
    return facts


def load(table: str, index: int, record: Json, read: Read) -> tuple[numpy.ndarray, str]:
    """What a server begins a shard with (TableServer.host_saved): arrays and what is said of them.
    ``read`` returns whole arrays of a version, those that it has."""
    spec = record["spec"]
    facts = facts_of(record)
    slots = facts["state_slots"]
    prefix = shard_prefix(table, index)
    own = prefix if "row_shape" in spec else f"{PREFIX}{table}/"
    names = [f"{prefix}ids"] if "row_shape" in spec else []
    names += [f"{prefix}counts", f"{own}values"]
    names += [f"{own}state.{spec['rule']['rule']}.{slot}" for slot in range(slots)]
    found = read(record["from"], names)
    rows = len(found[f"{prefix}counts"])
    parts = []
    for name in names:
        array = found[name]
        if "row_shape" not in spec and name != f"{prefix}counts":
            first, length = facts["cuts"][index]
            array = array[first : first + length]
        parts.append(numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8))
    return numpy.concatenate(parts), json.dumps({"rows": rows, "rule": spec["rule"]})
