"""The errors that ringcoll raises: one class for each status of the C ABI.

After :class:`Timeout`, :class:`PeerLost`, :class:`TransportError`, :class:`Mismatch` or
:class:`Aborted` the communicator is poisoned: every later call on it raises the same error. Close
it and make another. (But for the :class:`Timeout` of a receive that no message has matched.)
"""

from __future__ import annotations

from typing import Any


class Error(RuntimeError):
    """Any failure of ringcoll.

    The message says what was being done, the cause and the remedy. ``rank`` is the rank of the
    communicator to blame, or -1; ``code`` is the name of the kind of error, the same in all
    languages.
    """

    code = "Error"

    def __init__(self, message: str, rank: int = -1) -> None:
        super().__init__(message)
        self.rank = rank

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.rank)


class InvalidArgument(Error, ValueError):
    """The call was refused and nothing was sent; the communicator is still good."""

    code = "InvalidArgument"


class Timeout(Error, TimeoutError):
    """A peer did not answer before the deadline; ``rank`` names it."""

    code = "Timeout"


class PeerLost(Error, ConnectionError):
    """A peer's process ended, or left the communicator; ``rank`` names it."""

    code = "PeerLost"


class TransportError(Error, ConnectionError):
    """A link or the operating system failed."""

    code = "Transport"


class Mismatch(Error):
    """Ranks make different calls, or the same with other arguments; the message names both."""

    code = "Mismatch"


class InternalError(Error):
    """A defect of ringcoll."""

    code = "Internal"


class Aborted(Error):
    """The communicator was aborted or closed, here or on another rank, while the call ran."""

    code = "Aborted"


class MessageTooLong(Error, ValueError):
    """A message is longer than the buffer of a receive. It is still there: receive it into a buffer
    of ``bytes`` bytes, from ``rank``, with ``tag``. The communicator is still good."""

    code = "TooLong"

    def __init__(self, message: str, rank: int = -1, tag: int = -1, bytes: int = -1) -> None:
        super().__init__(message, rank)
        self.tag = tag
        self.bytes = bytes

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.rank, self.tag, self.bytes)


# Indexed by rc_status.
_BY_STATUS: tuple[type[Error], ...] = (
    InternalError,
    InvalidArgument,
    Timeout,
    PeerLost,
    TransportError,
    Mismatch,
    InternalError,
    Aborted,
    MessageTooLong,
)


def from_status(status: int, message: str, rank: int, tag: int = -1, bytes: int = -1) -> Error:
    """The error for a failed call of the C ABI; called by the extension module. ``tag`` and
    ``bytes`` are those of a message that is too long."""
    kind = _BY_STATUS[status] if 0 < status < len(_BY_STATUS) else InternalError
    if kind is MessageTooLong:
        return MessageTooLong(message, rank, tag, bytes)
    return kind(message, rank)
