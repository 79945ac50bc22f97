"""What the FUSE file system needs of a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ringcoll.weights.formats import Manifest, Piece


@dataclass(frozen=True)
class VersionInfo:
    """One version that can be read: its number, the bytes of its tensors, when it was committed,
    in seconds since 1970."""

    number: int
    bytes: int
    time: float


class Lease(Protocol):
    """While it is open, its version can be read."""

    def close(self) -> None:
        """Ends the lease. Does not raise, also when the store is lost."""


class StagedTensor(Protocol):
    """A tensor of a commit, whose data are in a file of the staging area."""

    @property
    def name(self) -> str: ...

    @property
    def dtype(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def bytes(self) -> int: ...

    def read_into(self, out: memoryview, offset: int = 0) -> None:
        """Copies data, in C order and little-endian, from byte ``offset`` on."""


class Source(Protocol):
    """Versions of tensors. All methods may be called by several threads at a time.

    Each method returns or raises within ``timeout`` seconds: readers wait as long as it does. After
    an error that came only then, the file system keeps away from the source for a while. A method
    raises LookupError for a version that is not there or no longer there, InvalidArgument for a
    commit that the store refuses, and any other exception if the store cannot be reached.
    """

    def versions(self, timeout: float) -> Sequence[VersionInfo]:
        """The versions that can be read, in rising order. It is called for each look at the
        directory or at ``latest``, so it should answer from memory where it can. A version whose
        commit has returned to anyone must be among them."""

    def manifest(self, version: int, timeout: float) -> Manifest:
        """The manifest of a version. The file system remembers it."""

    def lease(self, version: int, timeout: float) -> Lease:
        """Keeps a version readable. The file system holds one lease of each version that has open
        or mapped files."""

    def read(self, version: int, pieces: Sequence[Piece], timeout: float) -> None:
        """Copies parts of tensors into memory, with the interpreter lock released as far as it can.
        The memory is libfuse's, and other memory in each call. When the method has returned or
        raised, nothing may write to it any more. A lease is held during the call."""

    def commit(
        self, tensors: Sequence[StagedTensor], metadata: Mapping[str, Any], timeout: float
    ) -> int:
        """Puts these tensors, commits, and returns the new version. The files do not change during
        the call, and are gone after it."""
