"""All that a store asks of an agent: who and where it is, memory that others may read, and reads.

Messages are the business of endpoint.py.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy

from ringcoll.errors import InvalidArgument
from ringcoll.remote import Read, empty
from ringcoll.weights.catalog import Json

SAME_PROCESS, SAME_HOST, SAME_LEAF, FAR = range(4)

#: Bytes of a region, at an offset, and how far away they are: the nearest are used.
Source = tuple[bytes, int, int]


class Block(NamedTuple):
    """Memory of this process that others may read. ``handle`` is base64, as messages have it."""

    array: numpy.ndarray
    region: Any
    handle: str


def agent_of(ranks_or_guest: Any) -> Any:
    """The agent of a communicator, or the agent itself."""
    agent = getattr(ranks_or_guest, "agent", ranks_or_guest)
    if not hasattr(agent, "receive") or not hasattr(agent, "dial"):
        raise InvalidArgument(
            f"{type(ranks_or_guest).__name__} is neither a communicator nor an agent: pass what "
            "ringcoll.init() or ringcoll.connect() returned"
        )
    return agent


def is_group(ranks_or_guest: Any) -> bool:
    """Whether it is a communicator."""
    return hasattr(ranks_or_guest, "agent") and hasattr(ranks_or_guest, "allgather")


def name_of(agent: Any) -> str:
    """The agent's id as text."""
    return f"{agent.id:016x}"


def describe(agent: Any) -> Json:
    """Where others find the agent: its addresses, host and leaf."""
    return {"addresses": list(agent.addresses), "host": agent.host, "leaf": agent.leaf}


def distance(mine: Json, me: str, theirs: Json, other: str) -> int:
    """How far one holder or client is from another, given their ids and descriptions."""
    if me.partition(".")[0] == other.partition(".")[0]:
        return SAME_PROCESS
    if mine["host"] == theirs.get("host"):
        return SAME_HOST
    return SAME_LEAF if mine["leaf"] and mine["leaf"] == theirs.get("leaf") else FAR


def allocate(agent: Any, size: int) -> Block:
    """New memory that others may read. Raises MemoryError or TransportError."""
    make = getattr(agent, "empty", empty)
    array = make((size,), "uint8")
    region = agent.register(array)
    return Block(array, region, encode(region.handle()))


def read(
    agent: Any, copies: Sequence[tuple[numpy.ndarray, Sequence[Source]]], timeout: float
) -> None:
    """Fills arrays from regions. Each has alternatives with the same bytes, the nearest first.
    Raises Gone, PeerLost, Timeout if no alternative is left."""
    agent.transfer([Read(out, sources) for out, sources in copies], timeout=timeout)


def encode(handle: bytes) -> str:
    """A handle as messages have it."""
    return base64.b64encode(handle).decode()


def decode(handle: str) -> bytes:
    """The handle in a message."""
    return base64.b64decode(handle)
