"""The communicator: collectives over the ranks of a job."""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from types import TracebackType
from typing import Any, TypeVar, cast

from ringcoll import _core, calls
from ringcoll.errors import InvalidArgument
from ringcoll.handles import Handle, Receipt
from ringcoll.messages import Received
from ringcoll.remote import Agent, Region

T = TypeVar("T")


def seconds_of(timeout: float | None) -> float:
    """A deadline in seconds for the C ABI, where 0 means the default. Raises InvalidArgument unless
    it is positive."""
    if timeout is None:
        return 0.0
    if not timeout > 0:
        raise InvalidArgument(f"timeout={timeout} is not a positive number of seconds")
    return float(timeout)


class Communicator:
    """A group of ranks that communicate. :func:`ringcoll.init`, :meth:`split` and :meth:`shrink`
    make communicators.

    A tensor is any object with the buffer protocol or DLPack: a NumPy array, a CPU tensor of torch,
    a ``bytearray``. It must be contiguous and in host memory. Its type is one of int8 to int64,
    uint8 to uint64, float16, bfloat16, float32, float64 or bool. A method with ``out`` writes the
    result there and returns it; ``out=x`` works in place. Without ``out`` the result is a new
    tensor: of torch for a torch tensor, of NumPy for all others. allreduce, reduce, broadcast,
    scan and exscan also take a list of tensors of one type, which are sent as one vector.

    ``op`` is sum, average, min, max, product, bit_and or bit_or. Inputs are multiplied by
    ``prescale`` before they are combined, and results by ``postscale`` afterwards. Counts are
    lengths of the first axis, one for each rank.

    All ranks must make the same calls in the same order. Any thread may make them, and no thread
    holds the GIL while it waits. Each collective has a variant whose name ends in ``_async`` and
    which returns a :class:`Handle` at once.

    Signals: while a blocking call of the main thread waits, Python's signal handlers run within a
    fraction of a second. If a handler raises, the call ends and raises the same, such as
    ``KeyboardInterrupt`` for Ctrl-C. A collective, :meth:`split` or :meth:`shrink` that ends this
    way aborts the communicator: its calls raise :class:`ringcoll.Aborted` on all ranks and name
    this rank. A send or receive that the other end has not matched ends alone, and the communicator
    stays usable; one that both ends have begun aborts the communicator. A daemon thread that is in
    a call when the interpreter ends never returns from it.

    ``timeout`` is the deadline of the whole call, in seconds (``math.inf``: none). It begins when
    the call is the oldest unfinished one. When it passes, the call raises
    :class:`ringcoll.Timeout`, and the communicator is poisoned on all ranks. Without it, the
    timeout of :func:`ringcoll.init` limits each wait by itself. Ranks may pass different values.

    Errors: a call that is refused before anything is sent raises :class:`ringcoll.InvalidArgument`.
    Any other :class:`ringcoll.Error` of a collective poisons the communicator: every later call
    raises it again, so close the communicator.
    """

    def __init__(self, core: _core.Comm, name: str) -> None:
        self._core = core
        self._name = name
        self._seat = calls.Seat(core.rank, core.size)
        self._splits = 0
        self._shrinks = 0
        self._agent: Agent | None = None

    @property
    def rank(self) -> int:
        """The rank of this process, 0 to ``size - 1``."""
        return self._seat.rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self._seat.size

    @property
    def name(self) -> str:
        """The communicator's name in messages."""
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

    @property
    def agent(self) -> Agent:
        """The agent of this rank, made when it is first asked for. The agents of the job's ranks
        may copy from and to one another; others after :meth:`ringcoll.Agent.admit`."""
        if self._agent is None or self._agent.closed:
            self._agent = Agent(_core.Agent(self._core))
        return self._agent

    def register(self, tensor: Any, writable: bool = False) -> Region:
        """As :meth:`ringcoll.Agent.register` of :attr:`agent`."""
        return self.agent.register(tensor, writable)

    # Collectives. Each blocking method makes the same plan as its asynchronous variant.

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
        """Combines the tensors of all ranks element by element. All ranks get the result, identical
        to the last bit. ``x`` has the same type and number of elements on all ranks."""
        return cast(
            T, self._run(calls.combine("allreduce", x, op, out, prescale, postscale), timeout)
        )

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
        return self._start(calls.combine("allreduce", x, op, out, prescale, postscale), timeout)

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
        """Combines the tensors of all ranks element by element. The root gets the result, the
        others ``None``. ``out`` counts on the root only."""
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
        """Returns the root's tensor on all ranks. On other ranks ``x`` only gives the type and
        shape of the result, unless ``out=x`` overwrites it."""
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
        """Returns, on all ranks, the tensors of all ranks, joined along the first axis in rank
        order.

        ``counts`` are the lengths of all ranks' first axes, by rank, and are needed if these
        differ. Scalars are joined to a vector.
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
        """Like :meth:`allgather`, but only the root gets the result; the others get ``None``."""
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
        """Cuts the root's tensor along its first axis and gives each rank one part, in rank order.
        The parts are equal, or have the lengths ``counts``.

        Ranks other than the root must pass ``out``, which receives their part. Their ``x`` is
        ignored and may be ``None``.
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
        """Combines the tensors of all ranks element by element, and gives each rank one part of the
        result's first axis, in rank order. The parts are equal, or have the lengths ``counts``."""
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
        """Sends part i of the first axis of ``x`` to rank i. The result joins the received parts in
        rank order.

        The parts are equal unless all ranks pass ``send_counts``, the lengths of the parts to each
        rank. ``recv_counts`` are the lengths of the parts from each rank. All ranks pass them, or
        none does: then the ranks exchange them first, in a separate call.
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
        """:meth:`alltoall`, without waiting. Pass ``send_counts`` and ``recv_counts`` together, or
        neither."""
        return self._start(calls.alltoall(self._seat, x, send_counts, recv_counts, out), timeout)

    def scan(
        self,
        x: T,
        op: str = "sum",
        out: T | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        *,
        timeout: float | None = None,
    ) -> T:
        """Combines the tensors of ranks 0 to this one, element by element and in rank order (an
        inclusive prefix reduction). ``x`` has the same type and number of elements on all ranks.
        ``op`` is any but average."""
        return cast(T, self._run(calls.combine("scan", x, op, out, prescale, postscale), timeout))

    def scan_async(
        self,
        x: T,
        op: str = "sum",
        out: T | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        *,
        timeout: float | None = None,
    ) -> Handle[T]:
        """:meth:`scan`, without waiting."""
        return self._start(calls.combine("scan", x, op, out, prescale, postscale), timeout)

    def exscan(
        self,
        x: T,
        op: str = "sum",
        out: T | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        *,
        timeout: float | None = None,
    ) -> T:
        """Like :meth:`scan`, without this rank's own tensor (an exclusive prefix reduction). Rank 0
        gets the neutral element of ``op``: 0 for sum and bit_or, 1 for product, all bits for
        bit_and, and for min and max the largest and the least value of the type (infinities of
        floats). ``postscale`` does not apply to it."""
        return cast(T, self._run(calls.combine("exscan", x, op, out, prescale, postscale), timeout))

    def exscan_async(
        self,
        x: T,
        op: str = "sum",
        out: T | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        *,
        timeout: float | None = None,
    ) -> Handle[T]:
        """:meth:`exscan`, without waiting."""
        return self._start(calls.combine("exscan", x, op, out, prescale, postscale), timeout)

    def barrier(self, *, timeout: float | None = None) -> None:
        """Returns once all ranks have called it."""
        self._run(calls.Plan(calls.Call("barrier"), None), timeout)

    def barrier_async(self, *, timeout: float | None = None) -> Handle[None]:
        """:meth:`barrier`, without waiting."""
        return self._start(calls.Plan(calls.Call("barrier"), None), timeout)

    # Messages from one rank to another.

    def send(self, buffer: Any, peer: int, tag: int = 0, *, timeout: float | None = None) -> None:
        """Sends the bytes of ``buffer``, a tensor, to rank ``peer``, which may be this one. ``tag``
        is 0 to 2^31-1. Returns when ``buffer`` may be written again.

        Messages are independent of collectives: any thread may send and receive at any time, in any
        order. Messages of one sender that match one receive arrive in the order in which they were
        sent. A short message is eager: the receiver keeps it until its receive is posted, while its
        space for this sender lasts. A long message (rendezvous) is sent once its receive is posted.
        So two ranks that both send before they receive may block.

        If the peer has not matched the message within ``timeout`` seconds,
        :class:`ringcoll.Timeout` is raised, the message is withdrawn, and the communicator stays
        usable. If the peer has begun to receive and makes no progress for that time,
        :class:`ringcoll.Timeout` poisons the communicator.
        """
        self._core.send(buffer, peer, tag, seconds_of(timeout))

    def recv(
        self, buffer: Any, peer: int, tag: int = 0, *, timeout: float | None = None
    ) -> Received:
        """Receives the oldest message from rank ``peer`` with ``tag`` into ``buffer``, a tensor.
        ``peer`` may be :data:`ringcoll.ANY_SOURCE`, ``tag`` may be :data:`ringcoll.ANY_TAG`. The
        bytes are copied as they were sent, whatever the types. A message may be shorter than
        ``buffer``: the result has its source, tag and length.

        A message longer than ``buffer`` raises :class:`ringcoll.MessageTooLong`, which has the
        length. That message stays the next one to be received. If no message has come within
        ``timeout`` seconds, :class:`ringcoll.Timeout` is raised, and the communicator stays usable.
        """
        return Received(*self._core.recv(buffer, peer, tag, seconds_of(timeout)))

    def isend(
        self, buffer: Any, peer: int, tag: int = 0, *, timeout: float | None = None
    ) -> Handle[None]:
        """:meth:`send`, without waiting. Without a ``timeout`` the message stays pending until its
        receive is posted, however late that is. The ``timeout`` of :meth:`Handle.wait` limits only
        the wait.
        """
        return Handle(self._core.isend(buffer, peer, tag, seconds_of(timeout)), None, self)

    def irecv(
        self, buffer: Any, peer: int, tag: int = 0, *, timeout: float | None = None
    ) -> Handle[Received]:
        """:meth:`recv`, without waiting."""
        request = self._core.irecv(buffer, peer, tag, seconds_of(timeout))
        return Receipt(request, Received(-1, -1, -1, -1), self)

    # The communicator itself.

    def split(
        self,
        ranks: Sequence[int] | None = None,
        *,
        color: int | None = None,
        key: int = 0,
        name: str | None = None,
    ) -> Communicator | None:
        """Makes communicators of some of the ranks. Every rank of this one calls it, in one of two
        ways:

        ``ranks``: the ranks of the caller's group in their new order, or an empty list on a rank in
        no group.
        ``color``: ranks with the same colour (an integer, not negative) form a group, ordered by
        ``key``, then by rank. ``None`` on a rank in no group.

        Returns ``None`` on a rank in no group. The new communicator is closed on its own, before or
        after this one. If one rank passes a bad list, colour or key, all ranks raise
        :class:`ringcoll.InvalidArgument`. If ranks of a group pass different lists, all ranks raise
        :class:`ringcoll.Mismatch`.

        A rank may be in a limited number of communicators of one job at a time: 65,536 divided by
        the ranks of its machine, but at most 8,192 and at least 64. The limit is 1,024 under
        ``ulimit -v`` or ``-f``, and lower with RDMA. A split beyond it is refused on all ranks.
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
        """Makes a communicator of the surviving ranks of this one, in their order, without a new
        process, a launcher or a store. Survivors use it after a loss, when calls raise
        :class:`ringcoll.PeerLost`. On a communicator that has not failed it makes another one of
        all its ranks. The caller still closes this one, before or after.

        Collective over the survivors: each of them calls it, equally often. All get a communicator
        of the same ranks. It may contain a rank that has ended meanwhile; the next call on it then
        raises, and it can be shrunk in turn.

        Raises :class:`ringcoll.Timeout`, which names a rank that has not called within the
        communicator's deadline; the next call continues the same attempt. Raises
        :class:`ringcoll.PeerLost` on a rank that the others consider lost, and
        :class:`ringcoll.TransportError` on all ranks if one has no memory for another communicator.

        If the network is cut in two, both sides may go on. At most one of them has more than half
        of this communicator's ranks.
        """
        self._shrinks += 1
        name = name or f"{self._name}/rest{self._shrinks}"
        return Communicator(self._core.shrink(name), name)

    def stats(self) -> dict[str, Any]:
        """Describes the communicator: rank, size, hosts, levels, links and their costs, ring order.
        Also has counters of calls, bytes, copies, waits, messages and rejected connections since it
        was made. Any thread may call it.
        """
        return cast("dict[str, Any]", json.loads(self._core.stats()))

    def abort(self, reason: str) -> None:
        """Ends all calls in flight, on all ranks, with :class:`ringcoll.Aborted` and ``reason``.
        Later calls raise the same. Any thread may call it."""
        self._core.abort(reason)

    def close(self) -> None:
        """Tells the peers that this rank leaves, and frees everything. Calls in flight end with
        :class:`ringcoll.Aborted`.

        Does nothing the second time. Raises :class:`ringcoll.InvalidArgument` while another thread
        is in a blocking call. If Ctrl-C interrupts it, the closing goes on in the background.
        """
        self._core.close()
        if self._agent is not None:
            self._agent.close()

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
        fits = (color is None or 0 <= color < 2**63) and -(2**63) <= key < 2**63
        no_color, refused = -1, -2
        said = [no_color if color is None else color, key] if fits else [refused, 0]
        gathered = array("q", bytes(16 * self.size))
        self._run(calls.allgather(self._seat, array("q", said), None, gathered))
        for rank in range(self.size):
            if gathered[2 * rank] == refused:
                raise InvalidArgument(
                    f"split: rank {rank} passed a bad color or key: a color is at least 0, "
                    "and both have at most 64 bits"
                )
        if color is None:
            return []
        keys = [
            (gathered[2 * rank + 1], rank)
            for rank in range(self.size)
            if gathered[2 * rank] == color
        ]
        return [rank for _, rank in sorted(keys)]
