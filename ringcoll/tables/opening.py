"""Makes, finds, lists and drops the tables of a store."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ringcoll.errors import InvalidArgument
from ringcoll.rules import Sum
from ringcoll.tables.numbers import is_guest
from ringcoll.tables.parts import Parts
from ringcoll.tables.spec import check_shards, describe, rows_of, slots_of
from ringcoll.tables.table import Table
from ringcoll.weights.catalog import Json
from ringcoll.weights.group import Group

if TYPE_CHECKING:
    from ringcoll.weights.session import Session

_DEFAULTS: Json = {
    "dtype": "float32",
    "staleness": None,
    "quorum": None,
    "grace_s": 0.0,
    "max_rows": None,
    "evict": "age",
    "initial": 0.0,
    "rule": None,
}


class Opener:
    """The tables of one store in one process. Any thread may use it."""

    def __init__(
        self, parts: Parts, session: Session, check: Callable[[], None], limit: float
    ) -> None:
        self._parts, self._session, self._check, self._limit = parts, session, check, limit
        self._tables: dict[str, Table] = {}  # by uid

    def open(
        self, name: str, arguments: Json, shards: int | None, group: Group, timeout: float
    ) -> Table:
        """Makes a table, or finds one if neither a shape nor a row shape is given."""
        request: Json = {"q": "table", "name": name, "spec": None, "shards": None}
        if arguments["shape"] is not None or arguments["row_shape"] is not None:
            rule = arguments["rule"] or Sum()
            spec = describe(name, **arguments | {"rule": rule}, shards=shards)
            rows = rows_of(spec)
            request |= {"spec": spec, "rows": rows, "shards": check_shards(shards, rows)}
            request |= {"slots": slots_of(spec), "uid": secrets.token_hex(8)}
            request |= {"workers": workers_of(group)}
        else:
            _check_finds(name, arguments, shards)
        client = self._parts.client()
        record = self._session.request(request, timeout)["table"]
        client.open(name, record)
        if record["uid"] not in self._tables:
            table = Table(client, self._session, record, self._check, self._limit)
            self._tables.setdefault(record["uid"], table)
        return self._tables[record["uid"]]

    def settle(self, limit: float) -> None:
        """Waits until all calls on tables have ended. Raises Timeout."""
        deadline = time.monotonic() + limit
        for table in list(self._tables.values()):
            table.settle(max(0.0, deadline - time.monotonic()))


def workers_of(group: Group) -> list[list[Any]]:
    """The clients of the ranks that make a table, and their nodes. A guest alone is no rank."""
    workers = [[info["client"], node] for node, info in group.writers.items()]
    return [] if len(workers) == 1 and is_guest(workers[0][0]) else workers


def _check_finds(name: str, arguments: Json, shards: int | None) -> None:
    """Refuses a description without a shape: it could not be compared with the table's."""
    given = [key for key, default in _DEFAULTS.items() if arguments[key] != default]
    given += ["shards"] if shards is not None else []
    if given:
        raise InvalidArgument(
            f"table {name!r}: {', '.join(given)} without shape= or row_shape=: pass one of these "
            "to make a table, or the name alone to open it"
        )
