"""Writers' groups: processes that commit together."""

from __future__ import annotations

import json
import secrets
from typing import Any, NamedTuple

import numpy

from ringcoll.errors import InvalidArgument, Mismatch
from ringcoll.weights import agents
from ringcoll.weights.catalog import Json


class Group(NamedTuple):
    """Processes that commit together, and the place of this one among them."""

    id: str  # no other group has it
    rank: int
    writers: Json  # the nodes of all ranks, in order, and where they are


def meet(ranks: Any, me: str, info: Json, identity: str) -> Group:
    """The writers' group of a communicator whose ranks have opened the store ``identity``.
    Collective. Raises Mismatch, and InvalidArgument if it is no communicator."""
    if not agents.is_group(ranks):
        raise InvalidArgument("regroup: pass a communicator, such as world.shrink() returns")
    mine: Json = {"id": me, "info": info, "identity": identity, "group": secrets.token_hex(8)}
    everyone = exchange(ranks, mine) if ranks.size > 1 else [mine]
    for other, theirs in enumerate(everyone):
        if theirs["identity"] != everyone[0]["identity"]:
            raise Mismatch(f"regroup: ranks 0 and {other} have opened different stores", other)
    writers = {each["id"]: each["info"] for each in everyone}
    return Group(everyone[0]["group"], ranks.rank, writers)


def exchange(ranks: Any, mine: Json) -> list[Json]:
    """What all ranks have said, by rank."""
    data = numpy.frombuffer(json.dumps(mine).encode(), numpy.uint8)
    lengths = ranks.allgather(numpy.array([len(data)], numpy.int64))
    joined = ranks.allgather(data.copy(), counts=[int(length) for length in lengths])
    found, begin = [], 0
    for length in lengths.tolist():
        found.append(json.loads(joined[begin : begin + length].tobytes()))
        begin += length
    return found
