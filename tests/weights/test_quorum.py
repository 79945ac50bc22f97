"""Two sides of a cut network never both go on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from ringcoll.weights import quorum


def _subsets(of: list[str]) -> Iterator[frozenset[str]]:
    for size in range(len(of) + 1):
        yield from map(frozenset, itertools.combinations(of, size))


def test_a_leader_and_a_candidate_of_others_exclude_one_another() -> None:
    """For all groups of up to 5 members and all cuts: if the leader may go on with its side, no
    candidate may lead with members of the other side, whoever has ended there since."""
    for count in range(1, 6):
        members = [f"m{i}" for i in range(count)]
        everyone = [frozenset(members)]
        for side in _subsets(members[1:]):
            living = side | {"m0"}
            others = frozenset(members) - living
            if not quorum.leader_may_go_on(everyone, living, set(), set()):
                continue
            for agreed in _subsets(sorted(others)):
                if agreed:
                    assert not quorum.candidate_may_lead(everyone, agreed, set(), set())


def test_one_side_of_every_cut_goes_on_if_the_leader_is_there() -> None:
    for count in range(1, 6):
        members = [f"m{i}" for i in range(count)]
        for side in _subsets(members[1:]):
            living = side | {"m0"}
            assert quorum.leader_may_go_on([frozenset(members)], living, set(), set()) == (
                2 * len(living) >= count
            )


def test_a_survivor_goes_on_alone_if_all_others_ended_just_now() -> None:
    members = frozenset("abc")
    assert quorum.leader_may_go_on([members], {"a"}, {"b", "c"}, set())
    assert quorum.candidate_may_lead([members], {"c"}, {"a", "b"}, set())


def test_a_survivor_does_not_go_on_if_others_may_have_gone_on_without_it() -> None:
    members = frozenset("abc")
    assert not quorum.leader_may_go_on([members], {"a"}, {"b", "c"}, {"b", "c"})
    assert not quorum.candidate_may_lead([members], {"c"}, {"a", "b"}, {"a", "b"})
    # The other member of a pair cannot have become leader while this one lived.
    assert quorum.leader_may_go_on([frozenset("ab")], {"a"}, {"b"}, {"b"})
    # But a leader may have gone on without the other, and let new members in.
    assert not quorum.candidate_may_lead([frozenset("ab")], {"b"}, {"a"}, {"a"})


def test_every_configuration_counts() -> None:
    old, new = frozenset("abc"), frozenset("abcde")
    assert not quorum.candidate_may_lead([old, new], {"a", "b"}, set(), set())
    assert quorum.candidate_may_lead([old, new], {"a", "b", "d"}, set(), set())
    assert quorum.is_majority([old, new], {"a", "b", "e"})
    assert not quorum.is_majority([old, new], {"a", "d", "e"})
