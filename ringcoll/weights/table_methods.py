"""The methods of a store that concern parameter tables."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ringcoll.weights.catalog import Json
from ringcoll.weights.control import Control
from ringcoll.weights.saved_tables import SavedArray
from ringcoll.weights.session import Session
from ringcoll.weights.writing import Writer

if TYPE_CHECKING:
    from ringcoll.rules import Rule
    from ringcoll.tables import Table
    from ringcoll.tables.opening import Opener
    from ringcoll.tables.spec import Initial


class TableMethods:
    """What is imported for tables is imported when the first one is opened."""

    _control: Control
    _session: Session
    _writer: Writer
    _agent: Any
    _info: Json
    _timeout: float
    _opener: Opener | None = None

    def table(
        self,
        name: str,
        shape: Sequence[int] | int | None = None,
        *,
        row_shape: Sequence[int] | int | None = None,
        dtype: Any = "float32",
        rule: Rule | None = None,
        staleness: int | None = None,
        quorum: int | None = None,
        grace_s: float = 0.0,
        max_rows: int | None = None,
        evict: str = "age",
        initial: Initial = 0.0,
        shards: int | None = None,
        timeout: float | None = None,
    ) -> Table:
        """Makes or opens a parameter table, whose values live in the holders of the store.

        ``shape`` makes a dense table, a tensor. ``row_shape`` makes a sparse one, which has a row
        of that shape for any integer of 64 bits. Without both, the table of this name is opened.
        Made again, by any process, with the same arguments, it is the same table.

        ``rule`` says how a push changes values (:mod:`ringcoll.rules`; by default they are added).
        With ``staleness`` the ranks that make the table are its workers, and count their steps by
        :meth:`~ringcoll.tables.Table.tick`: a worker's pull lacks at most so many clocks of the
        others' pushes. With ``quorum`` so many workers complete a clock ``grace_s`` seconds after
        they have all finished it. A shard of a sparse table has at most ``max_rows`` rows, and
        gives up others by ``evict``: "age" or "use". Rows begin with ``initial``: a number,
        :class:`ringcoll.tables.Uniform` or :class:`ringcoll.tables.Normal`. A table is cut into
        ``shards``, which stay as many, and which servers take over from one another as they come
        and go; by default 4 for each server, at most 256. A dense table of one shard is one row to
        its rule.

        Raises :class:`ringcoll.Mismatch`, which names the argument, if the table was made
        otherwise; :class:`ringcoll.Gone` if there is none to open."""
        self._check()
        arguments: Json = {"shape": shape, "row_shape": row_shape, "dtype": dtype, "rule": rule}
        arguments |= {"staleness": staleness, "quorum": quorum, "grace_s": grace_s}
        arguments |= {"max_rows": max_rows, "evict": evict, "initial": initial}
        group, limit = self._writer.group, self._limit(timeout)
        return self._get_opener().open(name, arguments, shards, group, limit)

    def tables(self, timeout: float | None = None) -> list[str]:
        """The names of all tables."""
        names: list[str] = self._request({"q": "tables"}, timeout)["tables"]
        return names

    def drop_table(self, name: str, timeout: float | None = None) -> None:
        """Ends a table: its values are freed, and calls on it raise :class:`ringcoll.Gone`. Raises
        that itself if there is no such table."""
        self._request({"q": "drop_table", "name": name}, timeout)

    # What a commit asks (writing.py).

    def settle_tables(self, limit: float) -> None:
        """Waits until all calls of this process on tables have ended. Raises Timeout."""
        if self._opener is not None:
            self._opener.settle(limit)

    def save_tables(
        self, tables: Mapping[str, Json], rank: int, size: int, limit: float
    ) -> list[SavedArray]:
        """This rank's share of the shards."""
        from ringcoll.tables.saving import Saver

        saver = Saver(self._control, self._agent, self._info, time.monotonic() + limit)
        return saver.save(tables, rank, size)

    def _get_opener(self) -> Opener:
        if self._opener is None:
            from ringcoll.tables.opening import Opener

            parts = self._control.tables
            assert parts is not None
            with self._control.lock:
                if self._opener is None:
                    self._opener = Opener(parts, self._session, self._check, self._timeout)
        return self._opener

    def _check(self) -> None:
        raise NotImplementedError

    def _limit(self, timeout: float | None) -> float:
        raise NotImplementedError

    def _request(self, body: Json, timeout: float | None) -> Json:
        raise NotImplementedError
