"""Messages with tags, at random, whose receives can be matched in whatever order they come.

Of one target all receives are of one kind, so that each of them may get any message of its class,
and every class has as many receives as messages.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from support.soak.script import ANY, Exchange, Message, Receive

_TAGS = 3  # tags of an exchange; its number is the rest of each
_TAG_BITS = 6


def some_exchange(
    rng: Random,
    number: int,
    comm: int,
    size: int,
    some_size: Callable[[], int],
    *,
    settled: bool,
    kept: bool,
) -> Exchange:
    """`settled`: no other message of the communicator is about, so that a receive may want any
    tag."""
    early = tuple(rank for rank in range(size) if rng.random() < 0.6)
    base = number << _TAG_BITS
    messages = []
    for i in range(rng.randint(1, 8)):
        source, target = rng.randrange(size), rng.randrange(size)
        if source == target and size > 1 and rng.random() < 0.8:
            target = (target + 1) % size
        tag = base + rng.randrange(_TAGS)
        blocking = target in early and rng.random() < 0.4
        messages.append(Message(i, source, target, tag, some_size(), blocking))
    receives = []
    for target in sorted({message.target for message in messages}):
        mine = [message for message in messages if message.target == target]
        receives += _receives(rng, mine, settled=settled, late=target not in early)
    return Exchange(number, comm, tuple(messages), tuple(receives), early, kept)


def _receives(rng: Random, messages: list[Message], *, settled: bool, late: bool) -> list[Receive]:
    """Of one target."""
    any_source = rng.random() < 0.4
    any_tag = settled and rng.random() < 0.6
    classes: dict[tuple[int, int], list[Message]] = {}
    for message in messages:
        kind = (ANY if any_source else message.source, ANY if any_tag else message.tag)
        classes.setdefault(kind, []).append(message)
    receives = []
    for (source, tag), fitting in classes.items():
        fits = tuple(message.number for message in fitting)
        room = max(message.size for message in fitting) + rng.choice([0, 0, 1, 100])
        for _ in fitting:
            blocking = late and rng.random() < 0.5
            short = ANY
            if blocking and len(fitting) == 1 and fitting[0].size and rng.random() < 0.3:
                short = rng.randrange(fitting[0].size)
            receives.append(
                Receive(fitting[0].target, source, tag, room, fits, blocking, too_short=short)
            )
    rng.shuffle(receives)
    return receives
