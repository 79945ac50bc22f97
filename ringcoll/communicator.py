"""The communicator: collectives over the ranks of a job."""

from __future__ import annotations

import json
import logging
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Generic, TypeVar, cast

from ringcoll import _core, calls
from ringcoll.errors import InvalidArgument
from ringcoll.messages import Received

T = TypeVar("T")

_log = logging.getLogger("ringcoll")


class Handle(Generic[T]):
    """What is in flight: a collective, from a method whose name ends in ``_async``, or a message,
    from :meth:`Communicator.isend` or :meth:`Communicator.irecv`.

    Its tensors are borrowed until it has ended: they may be neither read (the output) nor written.
    A handle may be dropped before: the call goes on, and the library keeps the tensors until it has
    ended, at the latest when the communicator is closed. Any thread may use a handle.
    """

    def __init__(self, request: _core.Request, result: T, communicator: Communicator) -> None:
        self._request = request
        self._result = result
        self._communicator = communicator  # lives at least as long as its calls

    def wait(self, timeout: float | None = None) -> T:
        """The output, once the call has ended; raises the error that ended it.

        ``timeout`` is in seconds. If it passes first, the builtin ``TimeoutError`` is raised and
        the call goes on: wait again. Without one, the call's own deadline ends the wait with
        :class:`ringcoll.Timeout`. In the main thread Ctrl-C ends the wait at once, and the call
        goes on.
        """
        if not self._request.wait(-1.0 if timeout is None else max(0.0, timeout)):
            raise TimeoutError(f"the call has not ended within {timeout} s; it goes on")
        return self._result

    def done(self) -> bool:
        """Whether the call has ended, well or not. Does not block."""
        return self._request.done()

    def add_done_callback(self, fn: Callable[[Handle[T]], object]) -> None:
        """Has ``fn(handle)`` called once the call has ended, well or not; at once, by this thread,
        if it has ended already.

        Otherwise by the library's own thread, which does the communicator's asynchronous calls: the
        next of them waits for ``fn``. So ``fn`` must not block; it may start calls, and closing the
        communicator is allowed, too. A blocking call there, and waiting for another handle of the
        communicator that has not ended, raise :class:`ringcoll.InvalidArgument`. In other threads
        :meth:`wait` returns after ``fn`` has. For a message ``fn`` may be called by a thread that
        waits for that very handle, too.

        Several functions are called in the order in which they were added. An exception of ``fn``
        is logged (logger ``ringcoll``). Until ``fn`` was called the handle need not be kept. Calls
        that end with the communicator, by :meth:`Communicator.close` or at exit by
        :func:`ringcoll.shutdown`, have theirs called; what has not ended when the interpreter does
        has not.
        """
        callback = partial(_call_back, fn, self)
        if not self._request.add_done_callback(callback):
            callback()


class _Receipt(Handle[Received]):
    """A receive in flight."""

    def wait(self, timeout: float | None = None) -> Received:
        super().wait(timeout)
        return Received(*self._request.received())


def _call_back(fn: Callable[[Handle[T]], object], handle: Handle[T]) -> None:
    try:
        fn(handle)
    except Exception:  # nobody else would hear of it
        _log.exception("the done callback %r of a handle failed", fn)


def seconds_of(timeout: float | None) -> float:
    """A deadline as the C ABI wants it, where 0 is the default."""
    if timeout is None:
        return 0.0
    if not timeout > 0:
        raise InvalidArgument(f"timeout={timeout} is not a positive number of seconds")
    return float(timeout)


class Communicator:
    """Some ranks that compute together; from :func:`ringcoll.init`, :meth:`split` or
    :meth:`shrink`.

    Tensors are anything with the buffer protocol or DLPack (NumPy arrays, CPU tensors of torch,
    ``bytearray``), in host memory, contiguous, of int8 to int64, uint8 to uint64, float16,
    bfloat16, float32, float64 or bool. Where a method takes ``out``, the result is written there
    and returned; ``out=x`` works in place; without it the result is a new tensor of the library of
    ``x`` (:func:`ringcoll.tensors.make_like`). allreduce, reduce and broadcast also take a list of
    tensors of one type, which travel as one.

    ``op`` is sum, average, min, max, product, bit_and or bit_or. Inputs are multiplied by
    ``prescale`` before, and results by ``postscale`` after. Counts are lengths of the first axis,
    one for each rank.

    All ranks must make the same calls in the same order; any thread may make them, and none holds
    the GIL while it waits. Each method has a twin that ends in ``_async`` and returns a
    :class:`Handle` at once.

    Blocking calls of the main thread attend to signals: handlers are called within a fraction of a
    second, and what a handler raises (``KeyboardInterrupt`` for Ctrl-C) ends the call and is raised
    by it. A collective that is ended so, :meth:`split` or :meth:`shrink`, aborts the communicator:
    on all ranks its calls raise :class:`ringcoll.Aborted`, which names this rank. A send or receive
    that the other end has not met ends alone, and the communicator is still good; one that is under
    way aborts, too. A daemon thread that is in a call when the interpreter ends stays in it.

    ``timeout`` is the deadline of this call, in seconds (``math.inf``: none): it begins when the
    call does, after those before it, and all its waits for peers end then with
    :class:`ringcoll.Timeout`. Without it, each wait has that of :func:`ringcoll.init` for itself.
    Ranks may pass different ones; the first to pass poisons the communicator on all.

    Errors: :class:`ringcoll.InvalidArgument` if a call is refused before anything is sent; any
    other :class:`ringcoll.Error` poisons the communicator, so that every later call raises it
    again: close it.
    """

    def __init__(self, core: _core.Comm, name: str) -> None:
        self._core = core
        self._name = name
        self._seat = calls.Seat(core.rank, core.size)
        self._splits = 0
        self._shrinks = 0

    @property
    def rank(self) -> int:
        """This process's number, 0 to ``size - 1``."""
        return self._seat.rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self._seat.size

    @property
    def name(self) -> str:
        """What tells it from other communicators, in messages."""
        return self._name

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._core.closed

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"<ringcoll.Communicator {self._name!r}: rank {self.rank} of {self.size}{state}>"

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # Collectives. Each blocking method and its twin plan the same call.

    def allreduce(
        self,
        x: T,
        op: str = "sum",
        out: T | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        *,
        timeout: float | None = None,
    ) -> T:
        """Combines the tensors of all ranks element by element; all ranks get the result, equal to
        the last bit."""
        return cast(T, self._run(calls.allreduce(x, op, out, prescale, postscale), timeout))

    def allreduce_async(
        self,
        x: T,
        op: str = "sum",
        out: T | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        *,
        timeout: float | None = None,
    ) -> Handle[T]:
        """:meth:`allreduce`, without waiting."""
        return self._start(calls.allreduce(x, op, out, prescale, postscale), timeout)

    def reduce(
        self,
        x: T,
        op: str = "sum",
        root: int = 0,
        out: T | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        *,
        timeout: float | None = None,
    ) -> T | None:
        """Combines the tensors of all ranks; the root gets the result, the others ``None``."""
        return cast(
            "T | None",
            self._run(calls.reduce(self._seat, x, op, root, out, prescale, postscale), timeout),
        )

    def reduce_async(
        self,
        x: T,
        op: str = "sum",
        root: int = 0,
        out: T | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        *,
        timeout: float | None = None,
    ) -> Handle[T | None]:
        """:meth:`reduce`, without waiting."""
        return self._start(calls.reduce(self._seat, x, op, root, out, prescale, postscale), timeout)

    def broadcast(
        self, x: T, root: int = 0, out: T | None = None, *, timeout: float | None = None
    ) -> T:
        """The root's tensor, on all ranks. Elsewhere ``x`` tells only type and shape; ``out=x``
        overwrites it."""
        return cast(T, self._run(calls.broadcast(self._seat, x, root, out), timeout))

    def broadcast_async(
        self, x: T, root: int = 0, out: T | None = None, *, timeout: float | None = None
    ) -> Handle[T]:
        """:meth:`broadcast`, without waiting."""
        return self._start(calls.broadcast(self._seat, x, root, out), timeout)

    def allgather(
        self,
        x: T,
        counts: Sequence[int] | None = None,
        out: T | None = None,
        *,
        timeout: float | None = None,
    ) -> T:
        """The tensors of all ranks, joined along the first axis in the order of ranks, on all
        ranks.

        ``counts``: the length of every rank's first axis, where they differ. Scalars make a vector.
        """
        return cast(T, self._run(calls.allgather(self._seat, x, counts, out), timeout))

    def allgather_async(
        self,
        x: T,
        counts: Sequence[int] | None = None,
        out: T | None = None,
        *,
        timeout: float | None = None,
    ) -> Handle[T]:
        """:meth:`allgather`, without waiting."""
        return self._start(calls.allgather(self._seat, x, counts, out), timeout)

    def gather(
        self,
        x: T,
        root: int = 0,
        counts: Sequence[int] | None = None,
        out: T | None = None,
        *,
        timeout: float | None = None,
    ) -> T | None:
        """:meth:`allgather` for the root only; the others get ``None``."""
        return cast("T | None", self._run(calls.gather(self._seat, x, root, counts, out), timeout))

    def gather_async(
        self,
        x: T,
        root: int = 0,
        counts: Sequence[int] | None = None,
        out: T | None = None,
        *,
        timeout: float | None = None,
    ) -> Handle[T | None]:
        """:meth:`gather`, without waiting."""
        return self._start(calls.gather(self._seat, x, root, counts, out), timeout)

    def scatter(
        self,
        x: T | None,
        root: int = 0,
        counts: Sequence[int] | None = None,
        out: T | None = None,
        *,
        timeout: float | None = None,
    ) -> T:
        """Cuts the root's tensor along its first axis, and gives each rank its part: equal ones, or
        ``counts``.

        Ranks other than the root pass ``out`` to receive into; their ``x`` is not looked at and may
        be ``None``.
        """
        return cast(T, self._run(calls.scatter(self._seat, x, root, counts, out), timeout))

    def scatter_async(
        self,
        x: T | None,
        root: int = 0,
        counts: Sequence[int] | None = None,
        out: T | None = None,
        *,
        timeout: float | None = None,
    ) -> Handle[T]:
        """:meth:`scatter`, without waiting."""
        return self._start(calls.scatter(self._seat, x, root, counts, out), timeout)

    def reduce_scatter(
        self,
        x: T,
        op: str = "sum",
        counts: Sequence[int] | None = None,
        out: T | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        *,
        timeout: float | None = None,
    ) -> T:
        """Combines the tensors of all ranks; each rank gets its part of the first axis: equal ones,
        or ``counts``."""
        plan = calls.reduce_scatter(self._seat, x, op, counts, out, prescale, postscale)
        return cast(T, self._run(plan, timeout))

    def reduce_scatter_async(
        self,
        x: T,
        op: str = "sum",
        counts: Sequence[int] | None = None,
        out: T | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        *,
        timeout: float | None = None,
    ) -> Handle[T]:
        """:meth:`reduce_scatter`, without waiting."""
        return self._start(
            calls.reduce_scatter(self._seat, x, op, counts, out, prescale, postscale), timeout
        )

    def alltoall(
        self,
        x: T,
        send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None,
        out: T | None = None,
        *,
        timeout: float | None = None,
    ) -> T:
        """Part i of the first axis of ``x`` goes to rank i; the result joins what came, in the
        order of ranks.

        Parts are equal, or ``send_counts`` on all ranks. What each rank receives, ``recv_counts``,
        is either passed by all ranks or asked of the peers first, by a call of its own.
        """
        if send_counts is not None and recv_counts is None:
            recv_counts = self._exchange_counts(send_counts, timeout)
        return cast(
            T, self._run(calls.alltoall(self._seat, x, send_counts, recv_counts, out), timeout)
        )

    def alltoall_async(
        self,
        x: T,
        send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None,
        out: T | None = None,
        *,
        timeout: float | None = None,
    ) -> Handle[T]:
        """:meth:`alltoall`, without waiting; ``send_counts`` and ``recv_counts`` go together."""
        return self._start(calls.alltoall(self._seat, x, send_counts, recv_counts, out), timeout)

    def barrier(self, *, timeout: float | None = None) -> None:
        """Returns once all ranks have come here."""
        self._run(calls.Plan(calls.Call("barrier"), None), timeout)

    def barrier_async(self, *, timeout: float | None = None) -> Handle[None]:
        """:meth:`barrier`, without waiting."""
        return self._start(calls.Plan(calls.Call("barrier"), None), timeout)

    # Messages from one rank to another.

    def send(self, buffer: Any, peer: int, tag: int = 0, *, timeout: float | None = None) -> None:
        """Sends a tensor to rank ``peer`` (it may be this one), which receives it with ``tag``, 0
        to 2^31-1. Returns when ``buffer`` may be written again.

        Messages are independent of collectives: any thread sends and receives at any time and in
        any order. Those of one sender that a receive fits arrive in the order in which they were
        sent. A short one is kept where nobody has asked for it yet, as long as there are not too
        many of one sender; a long one is sent when its receive is there. So two ranks that both
        send before they receive may wait for one another.

        If nobody has received it within ``timeout`` seconds, :class:`ringcoll.Timeout` is raised,
        the message is withdrawn, and the communicator is still good. If the peer has begun to
        receive and does not go on for so long, :class:`ringcoll.Timeout` poisons the communicator.
        """
        self._core.send(buffer, peer, tag, seconds_of(timeout))

    def recv(
        self, buffer: Any, peer: int, tag: int = 0, *, timeout: float | None = None
    ) -> Received:
        """Receives the oldest message from rank ``peer``, or :data:`ringcoll.ANY_SOURCE`, with
        ``tag``, or :data:`ringcoll.ANY_TAG`: bytes as they were sent, of whatever type. It may be
        shorter than ``buffer``: the result says from whom it is, its tag, and how long.

        One that is longer raises :class:`ringcoll.MessageTooLong`, which says how long it is, and
        stays the next to be received. If no message has come within ``timeout`` seconds,
        :class:`ringcoll.Timeout` is raised, and the communicator is still good.
        """
        return Received(*self._core.recv(buffer, peer, tag, seconds_of(timeout)))

    def isend(
        self, buffer: Any, peer: int, tag: int = 0, *, timeout: float | None = None
    ) -> Handle[None]:
        """:meth:`send`, without waiting. Without a ``timeout`` it stays pending until its receive
        is posted, however late that is: ``wait(timeout)`` of the handle limits the wait alone.
        """
        return Handle(self._core.isend(buffer, peer, tag, seconds_of(timeout)), None, self)

    def irecv(
        self, buffer: Any, peer: int, tag: int = 0, *, timeout: float | None = None
    ) -> Handle[Received]:
        """:meth:`recv`, without waiting."""
        request = self._core.irecv(buffer, peer, tag, seconds_of(timeout))
        return _Receipt(request, Received(-1, -1, -1, -1), self)

    # The communicator itself.

    def split(
        self,
        ranks: Sequence[int] | None = None,
        *,
        color: int | None = None,
        key: int = 0,
        name: str | None = None,
    ) -> Communicator | None:
        """A communicator of some of the ranks. Every rank of this one calls it, in one of two ways:

        ``ranks``: the ranks of the caller's group in their new order; an empty list for a rank in
        no group.
        ``color``: ranks with one colour (not negative) form a group, ordered by ``key``, then rank;
        ``None`` for a rank in no group.

        ``None`` is returned on ranks in no group. The new one is closed on its own, in any order.
        A rank may be in thousands of one job at a time (65,536 divided by the ranks of its machine,
        8,192 at most and 64 at least; 1,024 under ``ulimit -v`` or ``-f``; fewer with RDMA); one
        more is refused on all ranks.
        """
        self._splits += 1
        if ranks is None:
            ranks = self._ranks_of_color(color, key)
        elif color is not None:
            raise InvalidArgument("split: pass ranks or color, not both")
        name = name or f"{self._name}/{self._splits}"
        core = self._core.split([int(rank) for rank in ranks], name)
        return None if core is None else Communicator(core, name)

    def shrink(self, *, name: str = "") -> Communicator:
        """A communicator of those of this one's ranks that are left, in their order: after a loss,
        when calls raise :class:`ringcoll.PeerLost`, the others go on with it, without a new
        process, a launcher or a store.

        Collective over the ranks that live: each calls it, as often as the others do. All get a
        communicator of the same ranks. It may hold one that has ended meanwhile; its next call
        raises, and it is shrunk in turn. Raises :class:`ringcoll.Timeout` naming who has not come
        within the communicator's deadline: the next call goes on with the same attempt. Raises
        :class:`ringcoll.PeerLost` on a rank whom the others hold for lost, and
        :class:`ringcoll.TransportError` if a rank has no memory for one more. This communicator is
        closed on its own, before or after. On one that has not failed it makes another of all its
        ranks.

        Two sides of a network that is cut may each go on. One with more than half of this one's
        ranks is the only one.
        """
        self._shrinks += 1
        name = name or f"{self._name}/rest{self._shrinks}"
        return Communicator(self._core.shrink(name), name)

    def stats(self) -> dict[str, Any]:
        """Rank, size, hosts, levels, links, their costs and ring order, and counters of calls,
        bytes, copies, waits and rejected connections since the communicator was made. Any thread.
        """
        return cast("dict[str, Any]", json.loads(self._core.stats()))

    def abort(self, reason: str) -> None:
        """Ends all calls in flight, on all ranks, with :class:`ringcoll.Aborted` and the reason.
        Any thread."""
        self._core.abort(reason)

    def close(self) -> None:
        """Says goodbye to the peers and frees everything; calls in flight end with
        :class:`ringcoll.Aborted`.

        Twice is allowed. Refused while another thread is in a blocking call. After a Ctrl-C it is
        closed in the background.
        """
        self._core.close()

    def _run(self, plan: calls.Plan, timeout: float | None = None) -> Any:
        self._core.run(*plan.call, timeout=seconds_of(timeout))
        return plan.result

    def _start(self, plan: calls.Plan, timeout: float | None) -> Handle[Any]:
        request = self._core.start(*plan.call, timeout=seconds_of(timeout))
        return Handle(request, plan.result, self)

    def _exchange_counts(self, send_counts: Sequence[int], timeout: float | None) -> list[int]:
        sent = array("q", [int(count) for count in send_counts])
        if len(sent) != self.size:
            raise InvalidArgument(
                f"{len(sent)} send_counts were passed, and there are {self.size} ranks"
            )
        received = array("q", bytes(8 * self.size))
        self._run(calls.alltoall(self._seat, sent, None, None, received), timeout)
        return list(received)

    def _ranks_of_color(self, color: int | None, key: int) -> list[int]:
        if color is not None and color < 0:
            raise InvalidArgument(f"split: color {color} is negative")
        mine = array("q", [-1 if color is None else color, key])
        gathered = array("q", bytes(16 * self.size))
        self._run(calls.allgather(self._seat, mine, None, gathered))
        if color is None:
            return []
        keys = [
            (gathered[2 * rank + 1], rank)
            for rank in range(self.size)
            if gathered[2 * rank] == color
        ]
        return [rank for _, rank in sorted(keys)]
