"""Messages with tags: wildcards and results of receives."""

from __future__ import annotations

from typing import NamedTuple

ANY_SOURCE = -1
"""As ``source`` of a receive: from whichever rank."""

ANY_TAG = -1
"""As ``tag`` of a receive: whatever tag."""


class Received(NamedTuple):
    """The message that a receive has got: the sender's rank, the tag, and the length in bytes and
    in whole elements of the buffer."""

    source: int
    tag: int
    bytes: int
    elements: int
