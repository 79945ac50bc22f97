"""The errors that ringcoll raises: one class for each status of the C ABI.

:class:`InvalidArgument` and :class:`MessageTooLong` leave the communicator usable. Any other error
of a call poisons the communicator: every later call on it raises the same error. Then close it and
make another, or use :meth:`ringcoll.Communicator.shrink`. The exceptions are messages that the
other end has not matched, and errors of a shrink: they leave the communicator as it was.
"""

from __future__ import annotations

from typing import Any


class Error(RuntimeError):
    """Any failure of ringcoll.

    The message has what was being done, the cause and the remedy. ``rank`` is the rank of the
    communicator to blame, or -1. ``code`` is the name of the kind of error, the same in all
    languages.
    """

    code = "Error"

    def __init__(self, message: str, rank: int = -1) -> None:
        super().__init__(message)
        self.rank = rank

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.rank)


class InvalidArgument(Error, ValueError):
    """The call was refused and sent nothing. The communicator stays usable."""

    code = "InvalidArgument"


class Timeout(Error, TimeoutError):
    """A peer did not answer before the deadline. ``rank`` is the peer's."""

    code = "Timeout"


class PeerLost(Error, ConnectionError):
    """A peer's process ended, or left the communicator. ``rank`` is the peer's."""

    code = "PeerLost"


class TransportError(Error, ConnectionError):
    """A link or the operating system failed."""

    code = "Transport"


class Mismatch(Error):
    """Ranks make different calls, or one call with different arguments. The message names both."""

    code = "Mismatch"


class InternalError(Error):
    """A defect of ringcoll."""

    code = "Internal"


class Aborted(Error):
    """This or another rank aborted or closed the communicator, or interrupted a call."""

    code = "Aborted"


class MessageTooLong(Error, ValueError):
    """A message is longer than the receive's buffer. The message stays the next one to be received:
    receive ``bytes`` bytes from ``rank`` with ``tag``. The communicator stays usable."""

    code = "TooLong"

    def __init__(self, message: str, rank: int = -1, tag: int = -1, bytes: int = -1) -> None:
        super().__init__(message, rank)
        self.tag = tag
        self.bytes = bytes

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.rank, self.tag, self.bytes)


class Gone(Error, LookupError):
    """A region, or a version of a store, is not there any more."""

    code = "Gone"


class Refused(Error, PermissionError):
    """The other end does not allow it: the key is wrong, or a region is not writable."""

    code = "Refused"


# By rc_status.
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
    Gone,
    Refused,
)


def from_status(status: int, message: str, rank: int, tag: int = -1, bytes: int = -1) -> Error:
    """Makes the error for a failed call of the C ABI. The extension module calls it. ``tag`` and
    ``bytes`` belong to a message that is too long."""
    kind = _BY_STATUS[status] if 0 < status < len(_BY_STATUS) else InternalError
    if kind is MessageTooLong:
        return MessageTooLong(message, rank, tag, bytes)
    return kind(message, rank)
