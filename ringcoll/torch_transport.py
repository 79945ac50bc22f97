"""torch's one-sided transports (``torch.distributed._transport``, since torch 2.15) over ringcoll.

>>> from torch.distributed._transport import new_transport
>>> transport = new_transport("ringcoll", "cpu")  # found by an entry point, without an import

Tensors of the CPU alone. The module can be imported with any torch, or without; where torch has no
such transports, :class:`RingcollTransport` says so when it is made.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import json
import math
import operator
import secrets
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from ringcoll import _core
from ringcoll.errors import Error, InvalidArgument, PeerLost, Refused, Timeout, TransportError
from ringcoll.handles import Handle
from ringcoll.remote import Agent, Region

if TYPE_CHECKING:
    import torch

# Names that mypy does not know: they depend on the torch that is installed.
_Transport: Any = object
_Work: Any = object
try:
    _Transport = importlib.import_module("torch.distributed._transport").Transport
    _Work = importlib.import_module("torch.distributed").Work
except ImportError:
    pass

_URL = b"ringcoll-transport:"
_BUFFER = struct.Struct("<4sQ")  # the magic and the agent's id; the handle follows
_MAGIC = b"rct1"
_ATTEMPT_S = 2.0  # for each address of the peer, while there are others
_CLOSE_S = 5.0  # for peers that are in the middle of a copy
_WAIT_S = 300.0  # as RINGCOLL_TIMEOUT_S by default


@dataclass(frozen=True)
class RemoteBuffer:
    """Where memory of a peer is. Its bytes have a secret: who has them may read and write."""

    agent: int
    handle: bytes = field(repr=False)

    @functools.cached_property
    def length(self) -> int:
        return _core.Remote(self.handle).bytes

    def serialize(self) -> bytes:
        return _BUFFER.pack(_MAGIC, self.agent) + self.handle

    @classmethod
    def deserialize(cls, data: bytes) -> RemoteBuffer:
        """Raises ``TypeError`` if ``data`` are not bytes, ``ValueError`` if no buffer's."""
        if type(data) is not bytes:
            raise TypeError(f"a serialized remote buffer is bytes, not {type(data).__name__}")
        if len(data) < _BUFFER.size or not data.startswith(_MAGIC):
            raise ValueError("these bytes are no remote buffer of ringcoll's transport")
        _, agent = _BUFFER.unpack_from(data)
        buffer = cls(agent, data[_BUFFER.size :])
        _ = buffer.length  # raises InvalidArgument, a ValueError, if the handle is damaged
        return buffer


@dataclass(eq=False)
class _Registration:
    owner: RingcollTransport
    tensor: torch.Tensor
    bytes: Any  # the same memory as a NumPy array
    address: int
    region: Region | None  # None: it is closed
    remote: RemoteBuffer | None = None  # made when first asked for
    copies: int = 0  # in flight, to or from this memory
    active: bool = True

    def check(self) -> None:
        if not self.active:
            raise RuntimeError("the memory has been unregistered")
        if self.tensor.data_ptr() != self.address or self.tensor.nbytes != self.bytes.nbytes:
            raise RuntimeError("the registered tensor was resized, or has another storage now")


class MemoryView:
    """Bytes of registered memory."""

    def __init__(self, registration: _Registration, offset: int, length: int) -> None:
        self.registration = registration
        self.bytes = registration.bytes[offset : offset + length]

    def size(self) -> int:
        size: int = self.bytes.nbytes
        return size


class MutableMemoryView(MemoryView):
    """Bytes of registered memory that a read may overwrite."""

    writable: Literal[True] = True


class Memory:
    """A tensor that is registered with a transport."""

    def __init__(self, registration: _Registration) -> None:
        self._registration = registration

    def to_view(self, offset: int | None = None, length: int | None = None) -> MemoryView:
        return MemoryView(self._registration, *self._range(offset, length))

    def to_mutable_view(
        self, offset: int | None = None, length: int | None = None
    ) -> MutableMemoryView:
        return MutableMemoryView(self._registration, *self._range(offset, length))

    def to_remote_buffer(self, *, timeout: float | None = None) -> RemoteBuffer:
        """Where the peer finds the memory. Binds the transport if it is not bound yet."""
        self._registration.check()
        return self._registration.owner._remote_buffer(self._registration, timeout)

    def _range(self, offset: int | None, length: int | None) -> tuple[int, int]:
        self._registration.check()
        whole = self._registration.bytes.nbytes
        offset = 0 if offset is None else operator.index(offset)
        length = whole - offset if length is None else operator.index(length)
        if not 0 <= offset <= whole or not 0 <= length <= whole - offset:
            raise ValueError(f"{length} bytes from {offset} on are not in a tensor of {whole}")
        return offset, length


class _Calling(threading.local):
    """Whether this thread, one of the library's, is in a callback, and so must not wait."""

    back = False


_calling = _Calling()


class CopyWork(_Work):  # type: ignore[misc]
    """A copy in flight."""

    def __init__(self, handle: Handle[Any] | None, timeout: float | None) -> None:
        super().__init__()
        self._handle = handle  # None: there was nothing to copy
        self._timeout = timeout
        self._lock = threading.Lock()
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None
        # handle.done() is true only after the callbacks, so those who wait for one see it too late.
        self._over = handle is None
        if handle is not None:
            handle.add_done_callback(self._note_end)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Raises ``TimeoutError`` if the copy goes on for longer, or the error of the copy."""
        seconds = timeout.total_seconds()
        _check_timeout(seconds)
        if self._handle:
            if _calling.back and not self._over:
                raise RuntimeError("a callback cannot wait for a copy that is pending")
            self._handle.wait(seconds or self._timeout)
        return True

    def is_completed(self) -> bool:
        return self._over

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        if self.is_completed() and self._handle:
            try:
                self._handle.wait()
            except Error as error:
                return error
        return None

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return []

    def synchronize(self) -> None:
        self.wait()

    def _note_end(self, _: object) -> None:
        self._over = True

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Its value is an empty list. Its callbacks must not block; they may start copies."""
        import torch

        with self._lock:
            if future := self._future:
                return future
            future = self._future = torch.futures.Future()
        # Without the lock: if the copy has ended, this thread calls settle() at once.
        if self._handle is None:
            future.set_result([])
        else:
            self._handle.add_done_callback(functools.partial(_settle, future))
        return future


def _settle(future: torch.futures.Future[list[torch.Tensor]], handle: Handle[Any]) -> None:
    before, _calling.back = _calling.back, True
    try:
        handle.wait()
    except Error as error:
        future.set_exception(error)  # type: ignore[arg-type]  # torch's own hint is wrong
    else:
        future.set_result([])
    finally:
        _calling.back = before


@dataclass
class _Peer:
    agent: int
    connection: int
    lost: bool = False


@dataclass
class _State:
    """What the lock of a transport protects."""

    url: bytes | None = None
    peer: _Peer | None = None
    registrations: dict[tuple[int, int], _Registration] = field(default_factory=dict)
    ending: list[_Registration] = field(default_factory=list)  # not active any more
    copies: int = 0  # in flight
    closing: bool = False


class RingcollTransport(_Transport):  # type: ignore[misc]
    """An endpoint for one-sided copies of tensors to and from one peer; any thread may use it.

    ``timeout`` is that of calls which give none; by default RINGCOLL_TIMEOUT_S. A synchronous copy
    ends at its timeout. An asynchronous one goes on after a wait has timed out, for at most
    RINGCOLL_TIMEOUT_S; then it ends with :class:`ringcoll.Timeout`. Errors of copies are those of
    :class:`ringcoll.Agent`; all are also ``RuntimeError``.
    """

    def __init__(
        self, device: torch.device | str | None = None, *, timeout: float | None = None
    ) -> None:
        if not self.supported():
            raise ImportError(_what_is_missing())
        super().__init__(device)
        if self.device is not None and self.device.type != "cpu":
            raise ValueError(f"ringcoll copies tensors of the CPU, not of {self.device}")
        _check_timeout(timeout)
        self._default_timeout = timeout
        self._agent = Agent(_core.Agent(0.0))
        self._state = _State()
        self._changed = threading.Condition()
        self._receiving = threading.Lock()

    @staticmethod
    def supported() -> bool:
        return _Transport is not object

    def bind(self, *, timeout: float | None = None) -> bytes:
        """Opens a door for the peer. The same bytes again when it is called again. They have a
        secret: who has them may connect."""
        _check_timeout(timeout)
        with self._changed:
            self._check_open()
            if self._state.url is None:
                name, key = f"torch-{secrets.token_hex(4)}", secrets.token_hex(16)
                self._agent.admit(name, key)
                doors = [door for door in self._agent.addresses if door.endswith(f"/{name}")]
                told = {"agent": self._agent.id, "name": name, "key": key, "addresses": doors}
                self._state.url = _URL + json.dumps(told).encode()
            return self._state.url

    def connect(self, peer_url: bytes, *, timeout: float | None = None) -> int:
        """Connects to the peer whose :meth:`bind` has returned ``peer_url``. Once only."""
        until = self._deadline(timeout)
        agent, name, key, addresses = _read_url(peer_url)
        with self._changed:
            self._check_open()
            if self._state.peer is not None:
                raise RuntimeError("the transport is connected already")
            self._state.peer = _Peer(agent, 0, lost=True)
        try:
            self._agent.admit(name, key)
            connection = self._dial(addresses, until)
        except BaseException:
            self._state.peer = None
            raise
        with self._changed:
            self._state.peer = _Peer(agent, connection)
        return 0

    def connected(self) -> bool:
        """False also once the peer's process has ended, or has closed its transport."""
        with self._receiving:
            state = self._state
            if state.peer is None or state.closing:
                return False
            while not state.peer.lost and (event := self._agent.receive(0)):
                if event.kind == "closed" and event.connection == state.peer.connection:
                    state.peer.lost = True
            return not state.peer.lost

    def register_memory(self, tensor: torch.Tensor, *, timeout: float | None = None) -> Memory:
        """Registers a contiguous tensor of the CPU. A tensor that is registered already has one
        registration still: unregistering it ends both."""
        import torch

        _check_timeout(timeout)
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"register_memory() wants a torch.Tensor, not {type(tensor).__name__}")
        self._check_device(tensor.device)
        if tensor.device.type != "cpu":
            raise ValueError(f"ringcoll copies tensors of the CPU, not of {tensor.device}")
        if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
            raise ValueError("a registered tensor must be contiguous: pass x.contiguous()")
        if tensor.nbytes == 0:
            raise ValueError("an empty tensor has no memory to register")
        with self._changed:
            self._check_open()
            key = tensor.data_ptr(), tensor.nbytes
            if key not in self._state.registrations:
                self._state.registrations[key] = self._register(tensor)
            return Memory(self._state.registrations[key])

    def unregister_memory(self, memory: Memory, *, timeout: float | None = None) -> None:
        """Ends a registration: the peer's copies raise :class:`ringcoll.Gone` from now on. Waits
        for those that are under way."""
        until = self._deadline(timeout, default=_CLOSE_S)
        if not isinstance(memory, Memory) or memory._registration.owner is not self:
            raise TypeError("the memory was not registered with this transport")
        registration = memory._registration
        with self._changed:
            self._check_open()
            if registration.copies:
                raise RuntimeError("copies to or from the memory are pending: wait for them first")
            self._deactivate(registration)
        self._end(registration, until)

    def write(
        self,
        local_buffer: MemoryView,
        remote_buffer: RemoteBuffer,
        *,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> int | CopyWork:
        self._check_transfer(local_buffer, remote_buffer, mutable=False)
        start = self._agent.write_async if async_op else self._agent.write
        return self._copy(start, local_buffer, remote_buffer, async_op, timeout)

    def read(
        self,
        local_buffer: MutableMemoryView,
        remote_buffer: RemoteBuffer,
        *,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> int | CopyWork:
        self._check_transfer(local_buffer, remote_buffer, mutable=True)
        start = self._agent.read_async if async_op else self._agent.read
        return self._copy(start, local_buffer, remote_buffer, async_op, timeout)

    def close(self, *, timeout: float | None = None) -> None:
        """Waits for copies in flight and ends all registrations. After a ``TimeoutError`` nothing
        new can be done, and closing can be tried again. Errors of copies in flight are told by
        their Works alone."""
        until = self._deadline(timeout, default=_WAIT_S)
        with self._changed:
            if _calling.back and self._state.copies:
                raise RuntimeError("a callback cannot close a transport whose copies are pending")
            self._state.closing = True
            if not self._changed.wait_for(lambda: self._state.copies == 0, _left(until)):
                raise TimeoutError(f"{self._state.copies} copies go on: close the transport again")
            for registration in list(self._state.registrations.values()):
                self._deactivate(registration)
            ending = list(self._state.ending)
        for registration in ending:
            self._end(registration, until)
        self._agent.close()

    async def close_async(self, *, timeout: float | None = None) -> None:
        await asyncio.to_thread(functools.partial(self.close, timeout=timeout))

    def _check_transfer(self, local_buffer: Any, remote_buffer: Any, *, mutable: bool) -> None:
        if not isinstance(local_buffer, MutableMemoryView if mutable else MemoryView):
            wanted = "to_mutable_view()" if mutable else "to_view()"
            raise TypeError(f"the local buffer must be from {wanted} of registered memory")
        if not isinstance(remote_buffer, RemoteBuffer):
            raise TypeError("the remote buffer is not from a ringcoll transport")
        if local_buffer.registration.owner is not self:
            raise TypeError("the local buffer was registered with another transport")
        self._check_open()
        local_buffer.registration.check()
        peer = self._state.peer
        if peer is None:
            raise RuntimeError("the transport is not connected: call connect() first")
        if remote_buffer.agent != peer.agent:
            raise ValueError("the remote buffer is not of the peer that this is connected to")
        if local_buffer.size() > remote_buffer.length:
            raise ValueError(
                f"{local_buffer.size()} bytes are too many for a remote buffer of "
                f"{remote_buffer.length}"
            )

    def _copy(
        self,
        start: Callable[..., Any],
        local: MemoryView,
        remote: RemoteBuffer,
        async_op: bool,
        timeout: float | None,
    ) -> int | CopyWork:
        _check_timeout(timeout)
        if _calling.back and not async_op:
            raise RuntimeError("a callback cannot wait for a copy: pass async_op=True")
        timeout = self._default_timeout if timeout is None else timeout
        registration, handle = local.registration, None
        with self._changed:
            self._check_open()
            registration.check()
            registration.copies += 1
            self._state.copies += 1
        try:
            if local.size() and async_op:
                handle = start(remote.handle, local.bytes)
            elif local.size():
                start(remote.handle, local.bytes, timeout=timeout)
        finally:
            if handle is None:
                self._ended(registration)
        if handle is not None:
            handle.add_done_callback(functools.partial(self._ended, registration))
        return CopyWork(handle, timeout) if async_op else 0

    def _ended(self, registration: _Registration, _: object = None) -> None:
        with self._changed:
            registration.copies -= 1
            self._state.copies -= 1
            self._changed.notify_all()

    def _register(self, tensor: torch.Tensor) -> _Registration:
        import torch

        content = tensor.detach().reshape(-1).view(torch.uint8).numpy()
        region = self._agent.register(content, writable=True)
        return _Registration(self, tensor, content, tensor.data_ptr(), region)

    def _remote_buffer(self, registration: _Registration, timeout: float | None) -> RemoteBuffer:
        self.bind(timeout=timeout)  # a handle knows the doors that were open when it was made
        with self._changed:
            if registration.remote is None:
                registration.check()
                assert registration.region
                registration.remote = RemoteBuffer(self._agent.id, registration.region.handle())
            return registration.remote

    def _deactivate(self, registration: _Registration) -> None:
        if registration.active:
            registration.active = False
            key = registration.address, registration.bytes.nbytes
            del self._state.registrations[key]
            self._state.ending.append(registration)

    def _end(self, registration: _Registration, until: float) -> None:
        if region := registration.region:
            region.close(min(_left(until), _CLOSE_S))
        with self._changed:
            registration.region = None
            if registration in self._state.ending:
                self._state.ending.remove(registration)

    def _dial(self, addresses: list[str], until: float) -> int:
        for index, address in enumerate(addresses):
            last = index == len(addresses) - 1
            try:
                return self._agent.dial(address, _left(until) if last else _ATTEMPT_S)
            except (PeerLost, Refused, Timeout, TransportError):
                if last or _left(until) == 0:
                    raise
        raise InvalidArgument("the peer has told no address")

    def _check_open(self) -> None:
        if self._state.closing:
            raise RuntimeError("the transport is closed")

    def _deadline(self, timeout: float | None, default: float = 30.0) -> float:
        _check_timeout(timeout)
        if timeout is None:
            timeout = default if self._default_timeout is None else self._default_timeout
        return time.monotonic() + timeout


def _read_url(url: bytes) -> tuple[int, str, str, list[str]]:
    try:
        if not url.startswith(_URL):
            raise ValueError
        told = json.loads(url[len(_URL) :])
        addresses = [str(address) for address in told["addresses"]]
        return int(told["agent"]), str(told["name"]), str(told["key"]), addresses
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidArgument("these bytes are not what bind() of a peer has returned") from error


def _check_timeout(timeout: float | None) -> None:
    if timeout is not None and not (math.isfinite(timeout) and timeout >= 0):
        raise ValueError(f"a timeout of {timeout} s: it must be finite and not negative")


def _left(until: float) -> float:
    return max(0.0, until - time.monotonic())


def _what_is_missing() -> str:
    try:
        version = importlib.import_module("torch").__version__
    except ImportError:
        return "ringcoll's transport needs torch 2.15 or later, and torch is not installed"
    return (
        f"ringcoll's transport needs torch 2.15 or later: torch {version} has no "
        "torch.distributed._transport"
    )
