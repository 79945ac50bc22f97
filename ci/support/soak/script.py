"""What the ranks of a job do: a list of steps in one order that all of them follow.

A rank executes the steps that name it, in order, and skips the others. What a step waits for stands
in the same step or in an earlier one, so no script can deadlock a library that keeps its promises.
Ranks in a step are numbers of the job, unless the field says "of the communicator".
"""

from __future__ import annotations

from dataclasses import dataclass, fields

WORLD = 0
ANY = -1


@dataclass(frozen=True)
class Plan:
    """What a script is made from, and nothing else is."""

    seed: int
    size: int
    transport: str
    profile: str
    steps: int
    laps: int = 1


@dataclass(frozen=True, repr=False)
class Step:
    number: int

    def __str__(self) -> str:
        """Its fields but for those that say nothing."""
        said = [f"{self.number}"]
        for each in fields(self)[1:]:
            value = getattr(self, each.name)
            if value != each.default and value not in ((), False):
                said.append(f"{each.name}={value}")
        return f"{type(self).__name__}({', '.join(said)})"

    __repr__ = __str__


@dataclass(frozen=True, repr=False)
class Call(Step):
    """A collective. Counts are elements, one for each rank of the communicator.

    counts: of allgather, gather, scatter and reduce_scatter. matrix: of alltoall, what each rank
    sends to each. Otherwise `tensors` has the length of each tensor of a fused call.
    """

    comm: int
    collective: str
    dtype: str
    op: str = "sum"
    root: int = 0
    tensors: tuple[int, ...] = ()
    fused: bool = False
    counts: tuple[int, ...] = ()
    matrix: tuple[tuple[int, ...], ...] = ()
    equal: bool = True  # no counts are passed
    prescale: float = 1.0
    postscale: float = 1.0
    in_place: bool = False
    offset: int = 0  # bytes by which tensors are misaligned
    started: bool = False  # one that a Wait step waits for
    callback: bool = False


@dataclass(frozen=True, repr=False)
class Wait(Step):
    """Ranks wait for calls that they have started, each in an order of its own."""

    ranks: tuple[int, ...]
    share: float  # of those that are in flight; 1: all


@dataclass(frozen=True, repr=False)
class Split(Step):
    """`groups`: the new communicators, and their ranks as ranks of the parent, in new order."""

    parent: int
    groups: tuple[tuple[int, tuple[int, ...]], ...]
    by_color: bool


@dataclass(frozen=True, repr=False)
class Regroup(Step):
    """Another communicator of all ranks of one that has not failed, by shrink()."""

    parent: int
    child: int


@dataclass(frozen=True, repr=False)
class Close(Step):
    rank: int
    comm: int


@dataclass(frozen=True)
class Message:
    """`source`, `target`: ranks of the communicator."""

    number: int  # in the exchange
    source: int
    target: int
    tag: int
    size: int
    blocking: bool  # send() and not isend()


@dataclass(frozen=True)
class Receive:
    """`source` may be ANY, and so may `tag`; of the messages that it fits it may get any."""

    target: int
    source: int
    tag: int
    room: int
    fits: tuple[int, ...]  # numbers of messages
    blocking: bool
    too_short: int = ANY  # first tried with so few bytes, which is refused


@dataclass(frozen=True, repr=False)
class Exchange(Step):
    """Messages with tags. Ranks in `early` post their receives before they send anything."""

    comm: int
    messages: tuple[Message, ...]
    receives: tuple[Receive, ...]
    early: tuple[int, ...]  # ranks of the communicator
    kept: bool  # requests are left to a Wait step


@dataclass(frozen=True, repr=False)
class Starve(Step):
    """A receive that no message matches: its deadline passes, and nothing else happens."""

    comm: int
    rank: int  # of the communicator
    tag: int


@dataclass(frozen=True, repr=False)
class Threads(Step):
    """Blocking calls on several communicators at once, a thread for each."""

    blocks: tuple[tuple[int, tuple[Step, ...]], ...]


@dataclass(frozen=True, repr=False)
class Pause(Step):
    """A rank sleeps, or is stopped (SIGSTOP) some time later for a while, beside what it does."""

    rank: int
    stopped: bool
    after_ms: float
    for_ms: float


@dataclass(frozen=True, repr=False)
class Fork(Step):
    """A rank forks. The child ends at once, lives on, runs a program, or tries a call."""

    rank: int
    kind: str  # "exit", "linger", "exec", "call", "init"
    life_ms: float


@dataclass(frozen=True, repr=False)
class Stats(Step):
    rank: int
    comm: int


@dataclass(frozen=True, repr=False)
class Die(Step):
    """A rank kills itself (SIGKILL), some time later beside what it does; at the latest when the
    others shrink."""

    rank: int
    after_ms: float


@dataclass(frozen=True, repr=False)
class Renew(Step):
    """The end of what a death has ended: the world is shrunk to `ranks`."""

    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Script:
    plan: Plan
    knobs: dict[str, str]
    hosts: tuple[int, ...]  # of each rank, where the transport is a mix of hosts
    steps: tuple[Step, ...]

    @property
    def victims(self) -> tuple[int, ...]:
        return tuple(step.rank for step in self.steps if isinstance(step, Die))

    def dying(self, first: int) -> tuple[int, ...]:
        """The ranks that die from a step on, before the world is renewed."""
        found = []
        for step in self.steps[first:]:
            if isinstance(step, Renew):
                break
            if isinstance(step, Die):
                found.append(step.rank)
        return tuple(found)
