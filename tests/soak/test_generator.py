"""Scripts of ci/soak: the same from the same plan, and none that could deadlock by itself."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from support.soak import script
from support.soak.data import DTYPES
from support.soak.generate import PROFILES, generate
from support.soak.script import ANY, Plan

PLANS = [
    Plan(seed, size, transport, profile, steps=150)
    for profile in PROFILES
    for seed, size in ((1, 2), (2, 3), (3, 5), (4, 8))
    for transport in ("shm", "fake")
]


def name(plan: Plan) -> str:
    return f"{plan.profile}-{plan.transport}-{plan.size}"


def flat(steps):
    for step in steps:
        yield step
        if isinstance(step, script.Threads):
            for _, inner in step.blocks:
                yield from flat(inner)


@pytest.mark.parametrize("plan", PLANS, ids=name)
def test_a_plan_has_one_script(plan):
    assert generate(plan) == generate(plan)
    assert generate(replace(plan, seed=plan.seed + 1)).steps != generate(plan).steps


@pytest.mark.parametrize("plan", PLANS, ids=name)
def test_fewer_steps_are_the_beginning_of_more(plan):
    """So that a failure is made smaller by hand."""
    long, short = generate(plan), generate(replace(plan, steps=40))
    pairs = enumerate(zip(short.steps, long.steps, strict=False))
    same = next((i for i, (one, other) in pairs if one != other), len(short.steps))
    assert same >= 40
    # What is open then is ended.
    assert all(isinstance(step, (script.Wait, script.Close)) for step in short.steps[same:])
    assert short.knobs == long.knobs


def ranks_in(step):
    """Of the communicator that a step is about."""
    if isinstance(step, script.Call):
        return [step.root]
    return [rank for message in step.messages for rank in (message.source, message.target)]


def groups_after(step, groups):
    if isinstance(step, script.Split):
        return groups | {
            comm: tuple(groups[step.parent][rank] for rank in ranks) for comm, ranks in step.groups
        }
    if isinstance(step, script.Regroup):
        return groups | {step.child: groups[step.parent]}
    return {script.WORLD: step.ranks} if isinstance(step, script.Renew) else groups


@pytest.mark.parametrize("plan", PLANS, ids=name)
def test_steps_name_ranks_and_communicators_that_are_there(plan):
    groups = {script.WORLD: tuple(range(plan.size))}
    for step in generate(plan).steps:
        groups = groups_after(step, groups)
        if isinstance(step, script.Split):
            members = [rank for _, ranks in step.groups for rank in ranks]
            assert len(members) == len(set(members)), step
        if isinstance(step, script.Close):
            assert step.rank in groups[step.comm], step
        for each in flat([step]):
            if isinstance(each, (script.Call, script.Exchange)):
                assert all(0 <= rank < len(groups[each.comm]) for rank in ranks_in(each)), each
            if isinstance(each, script.Call):
                assert len(each.counts) in (0, len(groups[each.comm])), each
                assert len(each.matrix) in (0, len(groups[each.comm])), each


@pytest.mark.parametrize("plan", PLANS, ids=name)
def test_all_groups_but_the_world_are_closed_by_all_their_ranks(plan):
    """In scripts without deaths, which end groups by themselves."""
    steps = generate(plan).steps
    if any(isinstance(step, script.Renew) for step in steps):
        return
    opened, closed = Counter(), Counter(s.comm for s in steps if isinstance(s, script.Close))
    sizes = {script.WORLD: plan.size}
    for step in steps:
        if isinstance(step, script.Split):
            sizes |= {comm: len(ranks) for comm, ranks in step.groups}
            opened.update({comm: len(ranks) for comm, ranks in step.groups})
        elif isinstance(step, script.Regroup):
            sizes[step.child] = sizes[step.parent]
            opened[step.child] = sizes[step.parent]
    assert opened == closed


@pytest.mark.parametrize("plan", PLANS, ids=name)
def test_every_class_of_receives_has_as_many_messages(plan):
    """Whichever of them each receive gets, all find one; and a blocking one waits for no send that
    its own rank makes afterwards."""
    for step in flat(generate(plan).steps):
        if not isinstance(step, script.Exchange):
            continue
        assert len(step.receives) == len(step.messages)
        classes = Counter(receive.fits for receive in step.receives)
        assert sorted(n for fits in classes for n in fits) == list(range(len(step.messages)))
        for receive in step.receives:
            assert classes[receive.fits] == len(receive.fits)
            for number in receive.fits:
                message = step.messages[number]
                assert message.target == receive.target
                assert receive.source in (ANY, message.source)
                assert receive.tag in (ANY, message.tag)
                assert message.size <= receive.room
            assert not (receive.blocking and receive.target in step.early)
        assert all(m.target in step.early for m in step.messages if m.blocking)


@pytest.mark.parametrize("seed", range(3500, 3520))
def test_no_group_is_shrunk_while_ranks_die(seed):
    """Who is left of it would depend on how far the victim has come; the world's waits for that."""
    dying = False
    for step in generate(Plan(seed, 4, "tcp", "all", steps=80)).steps:
        dying = isinstance(step, script.Die) or (dying and not isinstance(step, script.Renew))
        assert not (dying and isinstance(step, script.Regroup)), step


def test_threads_have_neither_deaths_nor_forks():
    for profile in PROFILES:
        for step in generate(Plan(1, 4, "fake", profile, steps=200)).steps:
            assert not isinstance(step, (script.Die, script.Fork)), profile
            assert not (isinstance(step, script.Pause) and step.stopped), profile


def test_everything_there_is_comes_up():
    seen = set()
    for profile in PROFILES:
        for step in flat(generate(Plan(3, 4, "shm", profile, steps=1500)).steps):
            seen.add(type(step).__name__)
            if isinstance(step, script.Call):
                seen |= {step.collective, step.dtype, f"op {step.op}"}
                seen |= {
                    word
                    for word in ("in_place", "started", "callback", "fused", "equal")
                    if getattr(step, word)
                }
            if isinstance(step, script.Exchange):
                seen |= {"any source" for r in step.receives if r.source == ANY}
                seen |= {"any tag" for r in step.receives if r.tag == ANY}
                seen |= {"too short" for r in step.receives if r.too_short != ANY}
                seen |= {"kept"} if step.kept else set()
    assert set(DTYPES) <= seen
    ops = ("sum", "average", "min", "max", "product", "bit_and", "bit_or")
    assert {f"op {op}" for op in ops} <= seen
    collectives = {"allreduce", "reduce", "broadcast", "allgather", "gather", "scatter"}
    assert collectives | {"reduce_scatter", "alltoall", "barrier", "scan", "exscan"} <= seen
    kinds = {"Call", "Wait", "Split", "Regroup", "Close", "Exchange", "Starve", "Threads"}
    assert kinds | {"Pause", "Fork", "Stats", "Die", "Renew"} <= seen
    assert {"any source", "any tag", "too short", "kept"} <= seen
    assert {"in_place", "started", "callback", "fused", "equal"} <= seen
