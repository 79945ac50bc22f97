"""Saves tables for a commit, and reads them again. Names and layout are those of
ringcoll/weights/saved_tables.py.

The ranks of a commit share the shards out. Each asks the server that leads a shard, which copies
its rows, and reads that copy. If the server ends before that, the next one copies the shard.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy

from ringcoll import _core
from ringcoll.errors import Error, Gone, Timeout
from ringcoll.weights import agents
from ringcoll.weights.catalog_tables import Json, is_lost
from ringcoll.weights.saved_tables import PREFIX, Array, SavedArray, arrays_of, shard_prefix

if TYPE_CHECKING:
    from ringcoll.weights.control import Control

_ASK_S = 30.0
_AGAIN_S = 0.05

Read = Callable[[int, list[str]], Mapping[str, Any]]


class Saver:
    """Saves shards for one commit. ``info`` describes this process (:func:`agents.describe`)."""

    def __init__(self, control: Control, agent: Any, info: Json, deadline: float) -> None:
        self._control, self._session = control, control.session
        self._agent, self._info = agent, info
        self._deadline = deadline
        self._trouble: Error | None = None  # why a shard could not be saved, last

    def save(self, tables: Mapping[str, Json], rank: int, size: int) -> list[SavedArray]:
        """The arrays of every ``size``-th shard of these tables, from ``rank`` on. Raises Timeout,
        and Gone if nobody has a shard any more."""
        found = []
        number = 0
        for name, record in sorted(tables.items()):
            facts = facts_of(record)
            for index in range(len(record["shards"])):
                if number % size == rank:
                    cut = facts["cuts"][index] if facts["cuts"] else ()
                    found += self._save_shard(name, index, record, cut)
                number += 1
        return found

    def _save_shard(self, name: str, index: int, record: Json, cut: Any) -> list[SavedArray]:
        while True:
            shard = record["shards"][index]
            if is_lost(shard):
                raise Gone(
                    f"table {name!r}: shard {index} is lost with all of its servers: drop_table() "
                    "ends the table, and one that is made again begins with what the newest "
                    "version has of it; replicas= makes further copies"
                )
            for server in shard["holders"][:1]:
                request = {"q": "save", "uid": record["uid"], "shard": index}
                try:
                    answer = self._session.ask(server, request, self._left())
                    if answer is not None:
                        said = json.loads(answer["said"])
                        arrays = arrays_of(name, index, record["spec"], cut, said)
                        return self._read(server, arrays, answer)
                except Error as error:  # another one leads it now, or will
                    self._trouble = error
            time.sleep(_AGAIN_S)
            request = {"q": "table", "name": name, "spec": None, "shards": None}
            record = self._session.request(request, self._left())["table"]

    def _read(self, server: str, arrays: list[Array], answer: Json) -> list[SavedArray]:
        """Reads the server's copy, which frees it then."""
        data = numpy.empty(sum(array.bytes for array in arrays), numpy.uint8)
        if data.size:
            handle = agents.decode(answer["region"])
            far = agents.distance(self._info, self._control.me, answer["info"], answer["holder"])
            agents.read(self._agent, [(data, [(handle, 0, far)])], self._left())
        self._control.send(server, {"q": "saved", "token": answer["token"], "r": 0})
        return [SavedArray(each, data[each.start : each.start + each.bytes]) for each in arrays]

    def _left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise Timeout(
                "servers of tables have not copied their shards before the deadline"
                + (f": {self._trouble}" if self._trouble else "")
            )
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
