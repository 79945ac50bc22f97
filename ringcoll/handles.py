"""Handles of calls and messages in flight."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from ringcoll import _core
from ringcoll.log import log
from ringcoll.messages import Received

if TYPE_CHECKING:
    from ringcoll.communicator import Communicator
    from ringcoll.remote import Agent

T = TypeVar("T")


class Handle(Generic[T]):
    """A collective call, a message or copies in flight. The methods whose names end in ``_async``,
    :meth:`Communicator.isend` and :meth:`Communicator.irecv` return handles.

    The call borrows its tensors until it has ended. Until then the program must not write to any of
    them, nor read the output. A program may drop a handle before that: the call goes on, and the
    library keeps the tensors until the call has ended, at the latest when the communicator is
    closed. Any thread may use a handle.
    """

    def __init__(self, request: _core.Request, result: T, maker: Communicator | Agent) -> None:
        self._request = request
        self._result = result
        self._maker = maker  # keeps it alive while calls are in flight

    def wait(self, timeout: float | None = None) -> T:
        """Waits until the call has ended, and returns its output. Raises the error that ended the
        call.

        ``timeout`` is in seconds. If it passes first, the builtin ``TimeoutError`` is raised and
        the call goes on, so wait again. Without it, only the call's own deadline ends the wait,
        with :class:`ringcoll.Timeout`. In the main thread Ctrl-C ends the wait within a fraction of
        a second, and the call goes on.
        """
        if not self._request.wait(-1.0 if timeout is None else max(0.0, timeout)):
            raise TimeoutError(f"the call has not ended within {timeout} s; it goes on")
        return self._result

    def done(self) -> bool:
        """Whether the call has ended, with or without an error. Does not block."""
        return self._request.done()

    def add_done_callback(self, fn: Callable[[Handle[T]], object]) -> None:
        """Registers ``fn``: ``fn(handle)`` is called when the call has ended, with or without an
        error. If it has ended already, this thread calls ``fn`` at once.

        Otherwise ``fn`` is called by a thread that waits, for this call or a later one of the
        communicator, or else by a thread of the library. The communicator's later asynchronous
        calls wait until ``fn`` returns, and so do messages that no thread waits for. So ``fn`` must
        not block, nor need a lock that a thread holds while it waits. For a message, the thread
        waits for this very handle.

        ``fn`` may start calls and close the communicator. A blocking call on the communicator
        raises :class:`ringcoll.InvalidArgument` in ``fn``, and so does waiting for another of its
        handles that has not ended. In other threads, :meth:`wait` returns after ``fn`` has
        returned.

        Functions are called in the order in which they were added. An exception of ``fn`` is logged
        (logger ``ringcoll``). The program need not keep the handle until ``fn`` is called. A call
        that ends because :meth:`Communicator.close` or :func:`ringcoll.shutdown` closes the
        communicator also calls its functions. A call that has not ended when the interpreter ends
        does not.
        """
        callback = partial(_call_back, fn, self)
        if not self._request.add_done_callback(callback):
            callback()


class Receipt(Handle[Received]):
    """A receive in flight."""

    def wait(self, timeout: float | None = None) -> Received:
        super().wait(timeout)
        return Received(*self._request.received())


def _call_back(fn: Callable[[Handle[T]], object], handle: Handle[T]) -> None:
    try:
        fn(handle)
    except Exception:  # no caller can catch it
        log.exception("the done callback %r of a handle failed", fn)
