"""Tables as programs see them. See :meth:`ringcoll.Store.table`."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy

from ringcoll import _core
from ringcoll.errors import Gone, InvalidArgument, Timeout
from ringcoll.rules import Rule
from ringcoll.tables.arguments import Layout, weight_of
from ringcoll.tables.client import Client
from ringcoll.tables.spec import rule_of
from ringcoll.weights.catalog import Json

if TYPE_CHECKING:
    from ringcoll.weights.session import Session

_NO_CLOCK = -1
_ASK_S = 2.0  # a server that does not answer delays info() for so long


class TableCall:
    """A call that is under way. Any thread may wait for it."""

    def __init__(
        self, what: str, request: _core.Request, timeout: float, finish: Callable[[], Any]
    ):
        self._what, self._request, self._timeout = what, request, timeout
        self._finish: Callable[[], Any] | None = finish
        self._result: Any = None
        self._seen = False  # somebody has waited for the end
        self._lock = threading.Lock()

    def done(self) -> bool:
        """Whether the call has ended, so that :meth:`wait` returns or raises at once."""
        return self._request.done()

    def wait(self, timeout: float | None = None) -> Any:
        """Waits for the end, and returns what the call is for: the values that were pulled, or
        None. Raises the error of the call, and :class:`ringcoll.Timeout` after ``timeout`` or that
        of the store. After a Timeout the call goes on, and may be waited for again."""
        limit = self._timeout if timeout is None else float(timeout)
        if not self.await_end(limit):
            raise Timeout(self.complaint(f"within {limit:g} s"))
        self._seen = True
        self._request.wait()
        with self._lock:
            if self._finish is not None:
                finish, self._finish = self._finish, None
                self._result = finish()
            return self._result

    def await_end(self, timeout: float) -> bool:
        """Waits for the end. False if it has not come after ``timeout``."""
        try:
            return self._request.wait(timeout)
        except Exception:
            return True

    def unseen_error(self) -> Exception | None:
        """The error with which a call has ended, if nobody has waited for it."""
        try:
            if not self._seen:
                self._request.wait()
        except Exception as error:
            return error
        return None

    def complaint(self, when: str) -> str:
        """Says that the call has not ended in time."""
        return (
            f"{self._what} was not answered {when}: servers do not answer, or workers are behind; "
            "wait() again, or see table.info()"
        )


class Table:
    """A tensor, or rows by id, that lives in servers and is changed by pushes through a rule.

    Any thread may call any method. Calls of one process on one table keep their order. NumPy
    arrays, CPU tensors of torch and whatever :meth:`ringcoll.Store.put` takes are values. They must
    not be written until the call has ended.

    ``ids`` are those of a sparse table's rows: integers of 64 bits, in one dimension. For a dense
    table they are None, and values are the whole tensor.

    Errors: :class:`ringcoll.InvalidArgument`, the arguments do not fit the table;
    :class:`ringcoll.Gone`, the table was dropped, or all holders of a shard have ended;
    :class:`ringcoll.Timeout`; :class:`ringcoll.Aborted`, the store is closed. A push that raises
    has not been applied or, after a Timeout, may be applied later; never twice.
    """

    def __init__(
        self,
        client: Client,
        session: Session,
        record: Json,
        check: Callable[[], None],
        limit: float,
    ) -> None:
        self._client, self._session, self._check_store = client, session, check
        self._limit = limit
        self._uid: str = record["uid"]
        self._spec: Json = record["spec"]
        self._layout = Layout.of(self._spec)
        self._lock = threading.Lock()
        self._ticking = threading.Lock()
        self._calls: deque[TableCall] = deque()  # those that may not have ended
        self._problem: Exception | None = None  # of one that has failed, and nobody waited for
        workers = [worker for worker, _ in record["workers"]]
        has_clock = self._spec["staleness"] is not None
        self._clock: int | None = 0 if has_clock and client.number in workers else None

    # What it is.

    @property
    def name(self) -> str:
        """The table's name in its store."""
        return self._layout.name

    @property
    def dtype(self) -> str:
        """The type of the values."""
        return self._layout.dtype

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of a dense table; None for a sparse one."""
        return None if self._layout.is_sparse else self._layout.shape

    @property
    def row_shape(self) -> tuple[int, ...] | None:
        """The shape of a sparse table's rows; None for a dense one."""
        return self._layout.shape if self._layout.is_sparse else None

    @property
    def clock(self) -> int | None:
        """The clock of this worker. None if this process is no worker of the table."""
        return self._clock

    def __repr__(self) -> str:
        kind = "row_shape" if self._layout.is_sparse else "shape"
        return f"<ringcoll Table {self.name!r}: {self.dtype}, {kind}={list(self._layout.shape)}>"

    # Pushes and pulls.

    def push(
        self, ids: Any, values: Any, weight: float = 1.0, timeout: float | None = None
    ) -> None:
        """Changes rows by the table's rule. Returns when all holders have it. Of ids that occur
        more than once, the values are combined."""
        self._call_rows("push", ids, values, None, weight, True).wait(timeout)

    def pull(self, ids: Any = None, out: Any = None, timeout: float | None = None) -> Any:
        """The values of rows, in the order of the ids. Returns ``out``, or a new NumPy array. A
        row that was never pushed has the values with which it would begin."""
        return self._call_rows("pull", ids, None, out, 1.0, True).wait(timeout)

    def push_pull(
        self,
        ids: Any,
        values: Any,
        out: Any = None,
        weight: float = 1.0,
        timeout: float | None = None,
    ) -> Any:
        """:meth:`push`, then :meth:`pull` of the same rows, in one exchange with each server."""
        return self._call_rows("push_pull", ids, values, out, weight, True).wait(timeout)

    def push_async(self, ids: Any, values: Any, weight: float = 1.0) -> TableCall:
        """Starts a :meth:`push`."""
        return self._call_rows("push", ids, values, None, weight)

    def pull_async(self, ids: Any = None, out: Any = None) -> TableCall:
        """Starts a :meth:`pull`. ``out`` has unspecified values until it has ended."""
        return self._call_rows("pull", ids, None, out, 1.0)

    def push_pull_async(
        self, ids: Any, values: Any, out: Any = None, weight: float = 1.0
    ) -> TableCall:
        """Starts a :meth:`push_pull`."""
        return self._call_rows("push_pull", ids, values, out, weight)

    def _call_rows(
        self, what: str, ids: Any, values: Any, out: Any, weight: float, attended: bool = False
    ) -> TableCall:
        rows = self._layout.ids(ids)
        data = None if what == "pull" else self._layout.values(values, rows)
        scale = weight_of(weight)
        if what == "push":
            return self._start(what, rows, data, scale, attended=attended)
        result, target = self._layout.target(out, rows)

        def finish() -> Any:
            target.finish()
            return result

        return self._start(what, rows, data, scale, target.data, finish, attended=attended)

    def assign(self, ids: Any, values: Any, timeout: float | None = None) -> None:
        """Sets the values of rows, whatever the rule is, and at once, whatever the clock is. What
        the rule keeps of the rows, such as momentum, stays. Of ids that occur more than once, the
        last values are taken."""
        self._start_assign(ids, values, True).wait(timeout)

    def assign_async(self, ids: Any, values: Any) -> TableCall:
        """Starts an :meth:`assign`."""
        return self._start_assign(ids, values)

    def _start_assign(self, ids: Any, values: Any, attended: bool = False) -> TableCall:
        rows = self._layout.ids(ids)
        data = self._layout.values(values, rows)
        return self._start("assign", rows, data, 1.0, attended=attended)

    def flush(self, timeout: float | None = None) -> None:
        """Waits until all calls of this process on the table have ended. Raises the error of the
        first one that has failed, and that nobody has waited for."""
        self.settle(self._limit if timeout is None else float(timeout))
        with self._lock:
            self._forget_ended()
            problem, self._problem = self._problem, None
        if problem is not None:
            raise problem

    def settle(self, timeout: float) -> None:
        """Waits until all calls of this process on the table have ended, with or without an error.
        Raises Timeout."""
        deadline = time.monotonic() + timeout
        with self._lock:
            calls = list(self._calls)
        for call in calls:
            if not call.await_end(max(0.0, deadline - time.monotonic())):
                raise Timeout(call.complaint("before it was waited for"))

    def _forget_ended(self) -> None:
        """Forgets calls that have ended, but for the first error. Called with the lock."""
        while self._calls and self._calls[0].done():
            error = self._calls.popleft().unseen_error()
            self._problem = self._problem or error

    # Clocks.

    def tick(self, timeout: float | None = None) -> int:
        """Finishes this worker's clock, and returns the next one. Pushes from now on belong to
        that one. After a Timeout it may be called again."""
        with self._ticking:
            if self._clock is None:
                raise InvalidArgument(self._no_worker())
            self._start("tick", None, None, 1.0, clock=self._clock, attended=True).wait(timeout)
            self._clock += 1
            return self._clock

    def join(self, timeout: float | None = None) -> int:
        """Makes this process a worker, at the current clock, which is returned. One that was not
        heard for long, and counts no more, becomes one again. A worker stays at its clock, unless
        a quorum has left it behind."""
        with self._ticking:
            if self._spec["staleness"] is None:
                raise InvalidArgument(self._no_worker())
            # Shards may be at different clocks for a moment: the worker begins at the latest.
            first = self._clock or 0
            latest = self._join_at(first, timeout)
            self._clock = self._join_at(latest, timeout) if latest > first else latest
            return self._clock

    def _no_worker(self) -> str:
        if self._spec["staleness"] is None:
            return f"table {self.name!r} has no clocks: make it with staleness="
        return f"this process is no worker of table {self.name!r}: call join() first"

    def _join_at(self, clock: int, timeout: float | None) -> int:
        """Joins shards at this clock or a later one. Returns the latest."""
        latest = numpy.zeros(1, numpy.int64)
        self._start("join", None, None, 1.0, latest, clock=clock, attended=True).wait(timeout)
        return max(clock, int(latest[0]))

    # Other.

    def set_rule(self, rule: Rule, timeout: float | None = None) -> None:
        """Goes on with another rule, or with other parameters such as another learning rate.
        Pushes that wait for their clock are applied by it, too.

        Values stay. What the rule keeps of rows, such as momentum, stays if it is the same rule
        that keeps as many arrays; otherwise it begins anew. An equal rule changes nothing.

        :meth:`ringcoll.Store.table` goes on to compare descriptions with the rule with which the
        table was made. ``info()["rules"]`` has the names of the rules that there are now."""
        found = rule_of(rule, self._spec)
        data = numpy.frombuffer(json.dumps(found).encode(), numpy.uint8)
        self._start("set_rule", None, data, 1.0, attended=True).wait(timeout)

    def info(self, timeout: float | None = None) -> dict[str, Any]:
        """What the servers say of the table: rows, pushes, pulls, NaN that were pushed, rows that
        were evicted, pushes that came too late for their clock, updates for which a rule of Python
        has raised; the current clock, and each worker's lag behind the foremost one. "missing" are
        servers that have not answered, "lost" is how many shards nobody has any more."""
        self._check()
        limit = min(_ASK_S, self._limit if timeout is None else float(timeout))
        servers = self._client.servers(self._uid)
        answers = {
            server: self._session.ask(server, {"q": "shards", "uid": self._uid}, limit)
            for server in servers
        }
        shards = [
            s
            for a in answers.values()
            if a is not None
            for s in a["shards"]
            if s["role"] == "leads"
        ]
        info = summary(shards)
        info |= {"name": self.name, "spec": self._spec, "servers": servers}
        info["lost"] = self._client.lost(self._uid)
        info["missing"] = [server for server, answer in answers.items() if answer is None]
        return info

    def _check(self) -> None:
        self._check_store()
        self._client.check()
        if self._client.is_dropped(self._uid):
            raise Gone(f"table {self.name!r} was dropped: make it again with store.table()")

    def _start(
        self,
        what: str,
        ids: numpy.ndarray | None,
        values: numpy.ndarray | None,
        weight: float,
        out: numpy.ndarray | None = None,
        finish: Callable[[], Any] = lambda: None,
        clock: int | None = None,
        attended: bool = False,
    ) -> TableCall:
        self._check()
        with self._lock:
            if clock is None:
                clock = _NO_CLOCK if self._clock is None else self._clock
            dtype = self._layout.dtype_of(values, ids)
            request = self._client.start(
                self._uid, what, ids, values, dtype, weight, clock, out, attended
            )
            call = TableCall(f"{what} of table {self.name!r}", request, self._limit, finish)
            self._forget_ended()
            self._calls.append(call)
            return call


def summary(shards: list[Json]) -> dict[str, Any]:
    """Adds up what servers say of the shards of a table."""
    found: dict[str, Any] = {"shards": len(shards)}
    for field in ("rows", "bytes", "pushes", "pulls", "nan", "evicted", "late", "failed"):
        found[field] = sum(shard[field] for shard in shards)
    found["rules"] = sorted({shard["rule"] for shard in shards})
    clocks: dict[int, int] = {}
    for shard in shards:
        for worker, clock in shard["workers"].items():
            clocks[int(worker)] = min(clocks.get(int(worker), clock), clock)
    foremost = max(clocks.values(), default=0)
    found["clock"] = min((shard["clock"] for shard in shards), default=0)
    found["workers"] = {worker: foremost - clock for worker, clock in sorted(clocks.items())}
    return found
