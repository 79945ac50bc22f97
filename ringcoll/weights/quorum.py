"""When a leader may go on without some members, and when a candidate may lead. Pure functions.

A *configuration* is a set of members. Several may count at a time: the last one that is known to be
committed, and those that were proposed after it. Each rule must hold for every one of them.

A member that has *ended* is known to be dead for ever. A member that is *silent* may be alive and
may have agreed with others. So a silent member never counts for anyone, and only a majority may go
on without it. Of two halves, the one with the leader goes on.

If all other members have ended, no majority is needed, unless others could have formed one before
they ended. A rival leader removes a silent member only ``REMOVAL_S`` after it was elected. So those
that ended sooner than ``FRESH_S`` after the last proof of contact cannot have done that. The others
are *stale*, and a rival needs half of the members to be stale.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

REMOVAL_S = 4.0  # a leader removes a silent member no sooner; longer: commits wait longer for it
FRESH_S = 3.5  # less than REMOVAL_S by more than clocks differ and threads oversleep
SERVE_S = 2.0  # with DEAF_S (replica_base.py) less than REMOVAL_S by as much

Configuration = Set[str]


def leader_may_go_on(
    configurations: Iterable[Configuration], living: Set[str], ended: Set[str], stale: Set[str]
) -> bool:
    """Whether a leader may commit what the members ``living`` have, itself among them."""
    return all(_may_go_on(each, living, ended, stale) for each in configurations)


def candidate_may_lead(
    configurations: Iterable[Configuration], agreed: Set[str], ended: Set[str], stale: Set[str]
) -> bool:
    """Whether a candidate may lead after the members ``agreed``, itself among them, have promised
    to refuse earlier leaders."""
    return all(_may_lead(each, agreed, ended, stale) for each in configurations)


def is_majority(configurations: Iterable[Configuration], members: Set[str]) -> bool:
    """Whether ``members`` are more than half of every configuration."""
    return all(2 * len(each & members) > len(each) for each in configurations)


def _may_go_on(
    configuration: Configuration, living: Set[str], ended: Set[str], stale: Set[str]
) -> bool:
    count = len(configuration)
    if 2 * len(configuration & living) >= count:
        return True
    if not configuration <= living | ended:
        return False
    # A rival needs a strict majority of promises, and half of the members to go on without us.
    rivals = configuration & ended - living
    return 2 * len(rivals) <= count or 2 * len(rivals & stale) < count


def _may_lead(
    configuration: Configuration, agreed: Set[str], ended: Set[str], stale: Set[str]
) -> bool:
    count = len(configuration)
    if 2 * len(configuration & agreed) > count:
        return True
    if not configuration <= agreed | ended:
        return False
    return 2 * len(configuration & ended & stale) < count
