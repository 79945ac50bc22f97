"""Memory with an address: regions that others read and write without a call of their owner.

>>> agent = ringcoll.connect("ringcoll://10.0.0.5:4711/weights", key="secret")  # a guest
>>> weights = ringcoll.empty((1024, 1024))  # memory that is cheap to share
>>> region = agent.register(weights)
>>> handle = region.handle()  # bytes, to be sent to another agent in any way
>>> other_agent.read(handle, out)  # doctest: +SKIP

An *agent* is what a process needs for that: a rank has one (:attr:`ringcoll.Communicator.agent`),
and :func:`connect` makes one for a *guest*, a process without a rank. Agents are equals. They come
and go, and a lost one concerns only those who copy to or from it.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ringcoll import _core
from ringcoll.errors import Error, InvalidArgument, PeerLost, Timeout, TransportError
from ringcoll.handles import Handle

#: Bytes of a region, at an offset. Among alternatives the nearest (the least third number) are used
#: while there are any.
Source = bytes | tuple[bytes, int] | tuple[bytes, int, int]


class Read(NamedTuple):
    """A copy to ``out``, any writable contiguous tensor, from one of ``sources``, which have the
    same bytes. Equally near sources share the copy; if one fails, the others go on."""

    out: Any
    sources: Sequence[Source]


class Write(NamedTuple):
    """A copy of ``tensor`` to a region, at ``offset`` bytes. ``notice``, a number from 0 to 2^64-1,
    is given to the region after the bytes."""

    tensor: Any
    target: bytes
    offset: int = 0
    notice: int | None = None


class Event(NamedTuple):
    """What :meth:`Agent.receive` tells. ``kind`` is "opened", "message" or "closed". The payload of
    "closed" says why: ``b"goodbye"``; ``b"refused"``, the process has ended; ``b"silent"``, it has
    not answered for 1.5 s; ``b"lost"``, the connection broke for another reason."""

    kind: str
    connection: int
    payload: bytes


_KINDS = ("none", "opened", "message", "closed")


class Region:
    """Memory of this process that others may read, and write if it is writable. It borrows its
    tensor until it is closed, which also happens when the program drops it. Any thread may use it.
    """

    def __init__(self, region: _core.Region) -> None:
        self._region = region

    @property
    def nbytes(self) -> int:
        return self._region.bytes

    def handle(self) -> bytes:
        """Bytes that tell another process how to copy to and from the region; at most 1 KiB. They
        have a secret: whoever has them and knows a key of the agent may copy."""
        return self._region.handle()

    def wait_notice(self, timeout: float | None = None) -> int:
        """Takes the oldest notice of a write; its bytes are there. Raises :class:`ringcoll.Timeout`
        after ``timeout`` seconds, :class:`ringcoll.Gone` once the region is closed."""
        return self._region.notice(math.inf if timeout is None else max(0.0, timeout))

    def close(self, timeout: float = 5.0) -> None:
        """Ends the region; later copies raise :class:`ringcoll.Gone`. Waits until nobody copies.
        Raises :class:`ringcoll.Timeout` if a process of this host is stopped in the middle of a
        write; then the tensor is still in use. Closing again does nothing."""
        self._region.close(max(0.0, timeout))

    def __enter__(self) -> Region:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Agent:
    """What a process needs to share memory. Any thread may use it, but one at a time receives.

    Errors of copies: :class:`ringcoll.Gone`, the region was closed, or another process is where its
    owner was; :class:`ringcoll.PeerLost`, the owner has ended; :class:`ringcoll.Refused`, the key
    is wrong or the region is not writable; :class:`ringcoll.InvalidArgument`, these bytes are no
    handle, or not in the region; :class:`ringcoll.Timeout`. After an error, the destination has
    unspecified bytes. An error concerns its copy alone.
    """

    def __init__(self, agent: _core.Agent) -> None:
        self._agent = agent

    @property
    def native(self) -> _core.Agent:
        """The agent of the library, for other parts of this package."""
        return self._agent

    @property
    def id(self) -> int:
        """A random number that no other agent has."""
        return self._agent.id

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._agent.closed

    @property
    def addresses(self) -> list[str]:
        """Where others reach this agent: "ringcoll://10.0.0.5:4711/weights"."""
        return list(self.stats()["addresses"])

    @property
    def host(self) -> str:
        """Equal for agents of one host, which may map one another's memory. RINGCOLL_HOSTID
        tells hosts apart that share a machine."""
        return str(self.stats()["host"])

    @property
    def leaf(self) -> str:
        """The switches above this host, "spine1.leaf3", as RINGCOLL_TOPOLOGY or SLURM says; empty
        if nobody says it. Agents prefer to read from those of their leaf."""
        return str(self.stats()["leaf"])

    def stats(self) -> dict[str, Any]:
        """``id``, ``host``, ``leaf``, ``addresses``, ``regions``, ``links``, and ``served``: bytes
        that this process has copied from or to each other agent, by its id in hexadecimal. ``by``
        has the same bytes by how they have travelled (host, tcp, rdma). ``answered`` are those of
        this agent's regions that its own thread has served to others."""
        found: dict[str, Any] = json.loads(self._agent.stats())
        return found

    def admit(self, name: str, key: str, port: int = 0) -> str:
        """Opens a door: admits whoever knows ``key`` under ``name``, on ``port`` of all interfaces,
        or on a free one. Returns the address to tell them. The agent itself then knows the key too.
        """
        addresses: list[str] = json.loads(self._agent.admit(name, key, port))
        return addresses[0]

    def register(self, tensor: Any, writable: bool = False) -> Region:
        """Makes the memory of a contiguous tensor (NumPy, torch, anything with the buffer protocol
        or DLPack; any element type) a region. Memory of :func:`empty` is the fastest."""
        return Region(self._agent.register(tensor, writable))

    def read(self, source: bytes, out: Any, offset: int = 0, timeout: float | None = None) -> Any:
        """Copies bytes of the region with handle ``source``, from ``offset`` on, to ``out``, and
        returns ``out``. ``timeout`` is in seconds, by default RINGCOLL_TIMEOUT_S."""
        self._agent.read(_remote(source), out, offset, _limit(timeout))
        return out

    def write(
        self,
        target: bytes,
        tensor: Any,
        offset: int = 0,
        notice: int | None = None,
        timeout: float | None = None,
    ) -> None:
        """Copies ``tensor`` to the region with handle ``target``; see :class:`Write`."""
        self._agent.write(_remote(target), tensor, offset, notice, _limit(timeout))

    def transfer(self, copies: Iterable[Read | Write], timeout: float | None = None) -> None:
        """Makes many copies, in no order. If one fails, the others may have been made or not."""
        self._agent.copy([_copy(each) for each in copies], _limit(timeout))

    def transfer_async(
        self, copies: Iterable[Read | Write], timeout: float | None = None
    ) -> Handle[None]:
        """Starts copies, and returns at once. A thread of the library makes those on this host. The
        tensors are borrowed until the copies have ended."""
        request = self._agent.start([_copy(each) for each in copies], _limit(timeout))
        return Handle(request, None, self)

    def read_async(
        self, source: bytes, out: Any, offset: int = 0, timeout: float | None = None
    ) -> Handle[Any]:
        request = self._agent.start([(out, [(_remote(source), offset, 0)])], _limit(timeout))
        return Handle(request, out, self)

    def write_async(
        self,
        target: bytes,
        tensor: Any,
        offset: int = 0,
        notice: int | None = None,
        timeout: float | None = None,
    ) -> Handle[None]:
        return self.transfer_async([Write(tensor, target, offset, notice)], timeout)

    def dial(self, address: str, timeout: float = 5.0) -> int:
        """Connects to another agent, whose key this one knows, for messages. Returns the number of
        the connection. Raises :class:`ringcoll.Refused` (wrong key), :class:`ringcoll.PeerLost`
        (nobody listens), :class:`ringcoll.Timeout`, and :class:`ringcoll.TransportError` (it is no
        agent, or has closed the connection for another reason)."""
        return self._agent.dial(address, max(0.0, timeout))

    def send(self, connection: int, payload: bytes) -> None:
        """Queues a message of at most 64 MiB. Messages of a connection arrive in order. Raises
        :class:`ringcoll.PeerLost` if it has ended."""
        self._agent.send(connection, payload)

    def receive(self, timeout: float | None = None) -> Event | None:
        """The next event, or None after ``timeout`` seconds. Raises :class:`ringcoll.Aborted` once
        the agent is closed."""
        event = self._agent.receive(math.inf if timeout is None else max(0.0, timeout))
        return None if event is None else Event(_KINDS[event[0]], event[1], event[2])

    def hang_up(self, connection: int) -> None:
        """Ends a connection with a goodbye; no event of it comes any more."""
        self._agent.hang_up(connection)

    def close(self) -> None:
        """Says goodbye to all. The agent ends when its regions are closed too. Closing again does
        nothing."""
        self._agent.close()

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Guest(Agent):
    """The agent of a process without a rank. ``address`` is that of the agent which it came to."""

    def __init__(self, agent: _core.Agent, address: str) -> None:
        super().__init__(agent)
        self.address = address


def connect(address: str, key: str, timeout: float = 10.0) -> Guest:
    """Makes an agent that may copy from and to those who admit guests under the name in ``address``
    ("ringcoll://10.0.0.5:4711/weights") with this ``key``. Tries the address until it answers, at
    most for ``timeout`` seconds. Raises :class:`ringcoll.Refused` if the key is wrong.
    """
    _, separator, name = address.removeprefix("ringcoll://").partition("/")
    if not separator or not name:
        raise InvalidArgument(f'"{address}" is no address: write ringcoll://host:port/name')
    guest = Guest(_core.Agent(0.0), address)
    guest.admit(name, key)
    end = time.monotonic() + timeout
    for attempt in itertools.count():
        try:
            guest.hang_up(guest.dial(address, max(0.1, end - time.monotonic())))
            return guest
        except (PeerLost, Timeout, TransportError):
            if time.monotonic() + 0.1 > end:
                guest.close()
                raise
        except Error:
            guest.close()
            raise
        time.sleep(min(0.05 * 2**attempt, 0.5))
    raise AssertionError


def serve(name: str, key: str, port: int = 0) -> Agent:
    """Makes an agent that admits whoever knows ``key`` under ``name``, on ``port`` of all
    interfaces, or on a free one. It needs no rank, and nobody need be there. ``addresses`` says
    where it is."""
    agent = Agent(_core.Agent(0.0))
    try:
        agent.admit(name, key, port)
    except Error:
        agent.close()
        raise
    return agent


def empty(shape: int | Sequence[int], dtype: Any = "float32") -> Any:
    """A NumPy array in memory that is cheap to share: other processes of the host map it when they
    copy from or to a region in it. Its content is zero."""
    import numpy

    if isinstance(dtype, str) and dtype == "bfloat16":
        import ml_dtypes

        dtype = ml_dtypes.bfloat16
    dtype = numpy.dtype(dtype)
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    allocation: Any = _core.Allocation(math.prod(shape) * dtype.itemsize)
    count = math.prod(shape) * dtype.itemsize
    return numpy.frombuffer(memoryview(allocation), numpy.uint8, count).view(dtype).reshape(shape)


@functools.lru_cache(maxsize=4096)
def _remote(handle: bytes) -> _core.Remote:
    return _core.Remote(handle)


def _limit(timeout: float | None) -> float:
    if timeout is None:
        return 0.0
    return max(timeout, 1e-3)


def _source(source: Source) -> tuple[_core.Remote, int, int]:
    if isinstance(source, bytes):
        return _remote(source), 0, 0
    handle, offset, *distance = source
    return _remote(handle), offset, distance[0] if distance else 0


def _copy(copy: Read | Write) -> tuple[Any, ...]:
    if isinstance(copy, Read):
        return copy.out, [_source(source) for source in copy.sources]
    return copy.tensor, _remote(copy.target), copy.offset, copy.notice
