"""The numbers of clients: unique for ever, and ascending with the rank."""

from __future__ import annotations

import hashlib

_HASH_BITS = 43
_GUEST = (1 << 20) - 1  # in place of a rank, and beyond all of them


def client_number(node: str, rank: int | None) -> int:
    """The number of the client of a node. A guest has no rank."""
    digest = hashlib.blake2b(node.encode(), digest_size=8).digest()
    low = int.from_bytes(digest, "big") >> (64 - _HASH_BITS)
    return ((_GUEST if rank is None else rank) << _HASH_BITS) | low


def is_guest(client: int) -> bool:
    """Whether a client is a guest's."""
    return client >> _HASH_BITS == _GUEST


def server_number(client: int) -> int:
    """The number with which the server of the same process has lines to other servers."""
    return ~client
