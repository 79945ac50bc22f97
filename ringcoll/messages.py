"""Messages with tags: what receives are asked for, and what they tell."""

from __future__ import annotations

from typing import NamedTuple

ANY_SOURCE = -1
"""As ``source`` of a receive: from whichever rank."""

ANY_TAG = -1
"""As ``tag`` of a receive: whatever tag."""


class Received(NamedTuple):
    """What a receive has got: the rank that sent it, its tag, and how long it was, in bytes and in
    elements of the buffer (whole ones)."""

    source: int
    tag: int
    bytes: int
    elements: int
