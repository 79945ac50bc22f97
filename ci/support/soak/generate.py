"""Makes the script of a job from its plan: a pure function, the same on all ranks.

A script of N steps begins as one of more steps does, so that a failure is made smaller by --steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from support.soak import data, script
from support.soak.exchanges import some_exchange
from support.soak.script import Plan, Script, Step
from support.soak.sizes import some_bytes, some_elements, some_knobs

PROFILES: dict[str, dict[str, int]] = {
    "calm": {
        "call": 45,
        "start": 25,
        "wait": 10,
        "exchange": 18,
        "starve": 1,
        "threads": 2,
        "stats": 1,
        "pause": 1,
        "split": 3,
        "close": 2,
    },
    "groups": {
        "call": 30,
        "start": 14,
        "wait": 7,
        "exchange": 15,
        "threads": 5,
        "stats": 1,
        "pause": 1,
        "split": 16,
        "regroup": 1,
        "close": 12,
    },
    "deaths": {
        "call": 30,
        "start": 14,
        "wait": 5,
        "exchange": 14,
        "threads": 3,
        "split": 8,
        "close": 5,
        "fork": 2,
        "stop": 1,
        "die": 6,
    },
    "stops": {
        "call": 30,
        "start": 14,
        "wait": 7,
        "exchange": 14,
        "threads": 3,
        "split": 5,
        "close": 3,
        "fork": 6,
        "stop": 8,
        "pause": 4,
    },
    "all": {
        "call": 30,
        "start": 14,
        "wait": 6,
        "exchange": 14,
        "starve": 1,
        "threads": 4,
        "stats": 1,
        "pause": 1,
        "split": 10,
        "regroup": 1,
        "close": 8,
        "fork": 2,
        "stop": 2,
        "die": 2,
    },
}
PROCESSES_ONLY = ("fork", "stop", "die")
_MOST_BYTES = 8 << 20  # all tensors of a call on all ranks
_MOST_GROUPS = 12
_COLLECTIVES = (
    "allreduce",
    "allreduce",
    "reduce",
    "broadcast",
    "allgather",
    "gather",
    "scatter",
    "reduce_scatter",
    "alltoall",
    "barrier",
    "scan",
    "exscan",
)
_PREFIXES = ("scan", "exscan")
_OPS = ("sum", "sum", "average", "min", "max", "product", "bit_and", "bit_or")


@dataclass
class Group:
    """A communicator, by the ranks of the job in it."""

    comm: int
    ranks: tuple[int, ...]
    depth: int = 0
    in_flight: bool = False  # calls or messages may not have been waited for by all
    unsettled: bool = False  # messages since a barrier: a receive of any tag could get them


@dataclass
class Closing:
    comm: int
    ranks: list[int]


@dataclass
class State:
    rng: Random
    profile: str
    groups: list[Group]
    closing: list[Closing] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    next_comm: int = 1
    next_number: int = 0

    @property
    def world(self) -> Group:
        return self.groups[0]

    def number(self) -> int:
        self.next_number += 1
        return self.next_number - 1

    def add(self, step: Step) -> None:
        self.steps.append(step)


def generate(plan: Plan) -> Script:
    """Raises KeyError for a profile that there is not."""
    rng = Random(f"{plan.seed} {plan.size} {plan.transport} {plan.profile}")
    knobs = some_knobs(rng)
    if plan.laps > 1:  # memory is compared: an arena that is soon in use as a whole
        knobs["RINGCOLL_ARENA_BYTES"] = "4M"
    hosts = _hosts(rng, plan.size)
    everyone = tuple(range(plan.size))
    state = State(rng, plan.profile, [Group(script.WORLD, everyone)])
    weights = dict(PROFILES[plan.profile])
    if plan.transport in ("fake", "loopback"):  # ranks are threads of one process
        weights = {kind: n for kind, n in weights.items() if kind not in PROCESSES_ONLY}
    kinds, shares = list(weights), list(weights.values())
    for _ in range(plan.steps):
        _KINDS[rng.choices(kinds, shares)[0]](state)
        _close_some(state, 0.3)
    _finish(state)
    return Script(plan, knobs, hosts, tuple(state.steps))


def _hosts(rng: Random, size: int) -> tuple[int, ...]:
    """Two or three hosts, of unequal numbers of ranks, that may not be side by side."""
    count = rng.choice([2, 2, 3]) if size > 2 else 2
    hosts = [i % count if rng.random() < 0.5 else rng.randrange(count) for i in range(size)]
    hosts[0], hosts[-1] = 0, count - 1
    return tuple(hosts)


def _some_group(state: State, *, least: int = 1) -> Group:
    """Mostly one of the newest."""
    able = [group for group in state.groups if len(group.ranks) >= least]
    weights = [1 + i for i in range(len(able))]
    return state.rng.choices(able, weights)[0]


def _tensors(rng: Random, limit: int, width: int, fused: bool) -> tuple[int, ...]:
    count = rng.randint(2, 5) if fused else 1
    return tuple(some_elements(rng, limit // count, width) for _ in range(count))


def some_call(state: State, group: Group, *, started: bool = False) -> script.Call:
    rng, size = state.rng, len(group.ranks)
    collective = rng.choice(_COLLECTIVES)
    dtype = rng.choice(list(data.DTYPES))
    equal = rng.random() < 0.5
    how = _shares(rng, collective, dtype, size, equal)
    if "reduce" in collective or collective in _PREFIXES:
        how |= _operation(rng, dtype, averages=collective not in _PREFIXES)
    return script.Call(
        number=state.number(),
        comm=group.comm,
        collective=collective,
        dtype=dtype,
        root=rng.randrange(size),
        equal=equal,
        in_place=rng.random() < 0.35 and (collective != "alltoall" or equal),
        offset=rng.choice([0, 0, 0, 8, 24, 40]),
        started=started,
        callback=started and rng.random() < 0.3,
        **how,
    )


def _shares(rng: Random, collective: str, dtype: str, size: int, equal: bool) -> dict[str, Any]:
    """How many elements the ranks pass."""
    width = data.DTYPES[dtype].itemsize
    limit = _MOST_BYTES // size
    if collective in ("allreduce", "reduce", "broadcast", *_PREFIXES):
        fused = rng.random() < 0.2
        return {"tensors": _tensors(rng, limit, width, fused), "fused": fused}
    if collective in ("allgather", "gather", "scatter", "reduce_scatter"):
        return {"counts": _counts(rng, limit // size, width, size, equal)}
    if collective == "alltoall":
        same = _counts(rng, limit // size, width, size, True)
        rows = [_counts(rng, limit // size, width, size, False) for _ in range(size)]
        return {"matrix": tuple(same if equal else row for row in rows)}
    return {}


def _operation(rng: Random, dtype: str, *, averages: bool) -> dict[str, Any]:
    """How the ranks' elements are combined."""
    ops = [op for op in _OPS if averages or op != "average"]
    op = rng.choice([op for op in ops if dtype not in data.FLOATS or not op.startswith("bit")])
    if op.startswith("bit") or rng.random() < 0.75:
        return {"op": op}
    factors = {"prescale": rng.choice([0.5, 1.0, 2.0])}
    return {"op": op, "postscale": rng.choice([0.25, 1 / 3, 1.0, 2.0]), **factors}


def _counts(rng: Random, limit: int, width: int, size: int, equal: bool) -> tuple[int, ...]:
    if equal:
        return (some_elements(rng, limit, width),) * size
    return tuple(some_elements(rng, limit, width) for _ in range(size))


def _call(state: State) -> None:
    state.add(some_call(state, _some_group(state)))


def _start(state: State) -> None:
    """A burst of them, of one communicator or of several."""
    for _ in range(state.rng.randint(1, 6)):
        group = _some_group(state)
        group.in_flight = True
        state.add(some_call(state, group, started=True))


def _wait(state: State) -> None:
    everyone = state.world.ranks
    if state.rng.random() < 0.5:
        some = tuple(sorted(state.rng.sample(everyone, state.rng.randint(1, len(everyone)))))
        state.add(script.Wait(state.number(), some, state.rng.uniform(0.2, 0.9)))
        return
    _wait_for_all(state)


def _wait_for_all(state: State) -> None:
    state.add(script.Wait(state.number(), state.world.ranks, 1.0))
    for group in state.groups:
        group.in_flight = False


def _exchange(state: State, group: Group | None = None, *, threaded: bool = False) -> None:
    group = group or _some_group(state)
    settled = not threaded and state.rng.random() < 0.3
    if settled and group.unsettled:
        _settle(state, group)
    kept = not settled and not threaded and state.rng.random() < 0.3
    limit = 1 << 21
    state.add(
        some_exchange(
            state.rng,
            state.number(),
            group.comm,
            len(group.ranks),
            lambda: some_bytes(state.rng, limit),
            settled=settled,
            kept=kept,
        )
    )
    group.unsettled = True
    group.in_flight |= kept
    if settled:
        _settle(state, group)


def _settle(state: State, group: Group) -> None:
    """What was sent has been received, everywhere: a receive of any tag gets nothing of it."""
    if group.in_flight:
        _wait_for_all(state)
    state.add(script.Call(state.number(), group.comm, "barrier", "uint8"))
    group.unsettled = False


def _starve(state: State) -> None:
    group = _some_group(state)
    rank = state.rng.randrange(len(group.ranks))
    number = state.number()
    state.add(script.Starve(number, group.comm, rank, (number << 6) + 63))


def _threads(state: State) -> None:
    rng = state.rng
    chosen = rng.sample(state.groups, min(len(state.groups), rng.randint(2, 4)))
    blocks = []
    for group in chosen:
        inner = State(rng, state.profile, [group], next_number=state.next_number)
        for _ in range(rng.randint(1, 5)):
            if rng.random() < 0.7:
                inner.add(some_call(inner, group))
            else:
                _exchange(inner, group, threaded=True)
        state.next_number = inner.next_number
        blocks.append((group.comm, tuple(inner.steps)))
    state.add(script.Threads(state.number(), tuple(blocks)))


def _stats(state: State) -> None:
    group = _some_group(state)
    state.add(script.Stats(state.number(), state.rng.choice(group.ranks), group.comm))


def _pause(state: State) -> None:
    rank = state.rng.choice(state.world.ranks)
    state.add(script.Pause(state.number(), rank, False, 0, state.rng.expovariate(1 / 5)))


def _stop(state: State) -> None:
    rng = state.rng
    after = rng.choice([0.0, rng.uniform(0, 10)])
    rank = rng.choice(state.world.ranks)
    state.add(script.Pause(state.number(), rank, True, after, min(400, rng.expovariate(1 / 60))))


def _fork(state: State) -> None:
    rng = state.rng
    kind = rng.choice(["exit", "linger", "linger", "exec", "call", "init"])
    rank = rng.choice(state.world.ranks)
    state.add(script.Fork(state.number(), rank, kind, rng.uniform(1, 700)))


def _split(state: State) -> None:
    rng = state.rng
    parent = _some_group(state)
    if len(state.groups) > _MOST_GROUPS or parent.depth >= 4:
        _close(state)
        return
    size = len(parent.ranks)
    order = rng.sample(range(size), size)
    left_out = rng.choice([0, 0, rng.randrange(size)])
    order = order[left_out:]
    if rng.random() < 0.3:
        order.sort()
    cuts = sorted(rng.sample(range(1, len(order)), min(len(order) - 1, rng.randint(0, 2))))
    parts = [order[a:b] for a, b in zip([0, *cuts], [*cuts, len(order)], strict=True)]
    groups = []
    for part in parts:
        groups.append((state.next_comm, tuple(part)))
        ranks = tuple(parent.ranks[r] for r in part)
        state.groups.append(Group(state.next_comm, ranks, parent.depth + 1))
        state.next_comm += 1
    step = script.Split(state.number(), parent.comm, tuple(groups), rng.random() < 0.5)
    state.add(step)


def _regroup(state: State) -> None:
    parent = _some_group(state)
    state.add(script.Regroup(state.number(), parent.comm, state.next_comm))
    state.groups.append(Group(state.next_comm, parent.ranks, parent.depth + 1))
    state.next_comm += 1


def _close(state: State) -> None:
    """A group that nobody calls any more; each rank closes it when it comes to."""
    able = state.groups[1:]
    if not able:
        return
    group = state.rng.choice(able)
    if group.in_flight:
        _wait_for_all(state)
    state.groups.remove(group)
    state.closing.append(Closing(group.comm, list(group.ranks)))


def _close_some(state: State, share: float) -> None:
    rng = state.rng
    for closing in state.closing:
        for rank in rng.sample(closing.ranks, len(closing.ranks)):
            if rng.random() < share:
                closing.ranks.remove(rank)
                state.add(script.Close(state.number(), rank, closing.comm))
    state.closing = [closing for closing in state.closing if closing.ranks]


def _die(state: State) -> None:
    """Deaths, some more steps that they disturb, and the world of those who are left."""
    rng = state.rng
    world = state.world.ranks
    if len(world) < 2:
        return
    victims = rng.sample(world, min(len(world) - 1, rng.choice([1, 1, 1, 2])))
    # Not "regroup": whom such a shrink leaves out depends on how far the victim has come.
    spared = (*PROCESSES_ONLY, "fork", "regroup")
    disturbed = [kind for kind in PROFILES[state.profile] if kind not in spared]
    shares = [PROFILES[state.profile][kind] for kind in disturbed]
    for victim in victims:
        after = rng.choice([0.0, rng.uniform(0, 2), rng.uniform(0, 30)])
        state.add(script.Die(state.number(), victim, after))
        for _ in range(rng.randint(0, 6)):
            _KINDS[rng.choices(disturbed, shares)[0]](state)
    left = tuple(rank for rank in world if rank not in victims)
    state.add(script.Renew(state.number(), left))
    state.groups = [Group(script.WORLD, left)]
    state.closing = []


def _finish(state: State) -> None:
    _wait_for_all(state)
    for group in state.groups[1:]:
        state.closing.append(Closing(group.comm, list(group.ranks)))
    state.groups = state.groups[:1]
    while state.closing:
        _close_some(state, 0.5)


_KINDS: dict[str, Callable[[State], None]] = {
    "call": _call,
    "start": _start,
    "wait": _wait,
    "exchange": _exchange,
    "starve": _starve,
    "threads": _threads,
    "stats": _stats,
    "pause": _pause,
    "stop": _stop,
    "fork": _fork,
    "split": _split,
    "regroup": _regroup,
    "close": _close,
    "die": _die,
}
