"""What is told of a version."""

from __future__ import annotations

from typing import Any, NamedTuple

from ringcoll.weights.catalog import Json


class Version(NamedTuple):
    """What :meth:`Store.versions` tells of a version: its number, the metadata of its commit, the
    bytes and number of its tensors, when it was committed (seconds since 1970), the ids of the
    holders that have parts of it, and the names of tensors that cannot be read now."""

    number: int
    metadata: Any
    bytes: int
    names: int
    time: float
    holders: list[str]
    unreadable: list[str]

    @classmethod
    def of(cls, record: Json) -> Version:
        """The version in an answer of :func:`ringcoll.weights.queries.versions`."""
        return cls(
            record["n"],
            record["metadata"],
            record["bytes"],
            record["names"],
            record["time"],
            record["holders"],
            record["unreadable"],
        )
