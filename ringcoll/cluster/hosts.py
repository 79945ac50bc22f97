"""The hosts of a job, rounds of pairs, and the names of hosts and ranks in findings. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ringcoll.cluster.pair import View

Report = dict[str, Any]  # from cluster.about.describe()
Views = Mapping[tuple[int, int], View]  # by (observing host, observed host), as numbers of hosts

_MOST_NAMES = 12


@dataclass(frozen=True)
class Host:
    """The ranks of one host. The rank ``first`` examines other hosts."""

    name: str
    ranks: list[int]
    interface: dict[str, Any]  # the one that the library would use; empty: none is up

    @property
    def first(self) -> int:
        return self.ranks[0]


def find_hosts(reports: Mapping[int, Report]) -> list[Host]:
    """The hosts, in the order of their first ranks. If hosts have the same name, the address is
    added."""
    ranks: dict[str, list[int]] = {}
    for rank in sorted(reports):
        ranks.setdefault(reports[rank]["host"], []).append(rank)
    names = Counter(reports[each[0]]["hostname"] for each in ranks.values())
    hosts = []
    for each in ranks.values():
        report = reports[each[0]]
        interface: dict[str, Any] = next(iter(report["interfaces"]), {})
        name = report["hostname"]
        if names[name] > 1:
            name += f" ({interface.get('address', 'no address')}, rank {each[0]})"
        hosts.append(Host(name, each, interface))
    return hosts


def rounds(count: int) -> Iterator[list[tuple[int, int]]]:
    """All pairs of ``count`` hosts, in rounds in which each host has at most one partner: a
    round-robin tournament."""
    players: list[int | None] = [*range(count)]
    if count % 2:
        players.append(None)
    half = len(players) // 2
    for _ in range(len(players) - 1):
        meet = zip(players[:half], reversed(players[half:]), strict=True)
        yield [(a, b) for a, b in meet if a is not None and b is not None]
        players = [players[0], players[-1], *players[1:-1]]


def encode_views(hosts: list[Host], views: Views) -> list[dict[str, Any]]:
    """The views as JSON."""
    names = [host.name for host in hosts]
    return [
        {"from": names[a], "to": names[b]} | view.encode() for (a, b), view in sorted(views.items())
    ]


def everywhere(pairs: set[tuple[int, int]], views: Views, side: int) -> list[int]:
    """Hosts that have at least two pairs in ``views`` with the host on ``side`` (0 or 1), and have
    all of these in ``pairs``."""
    all_ = Counter(pair[side] for pair in views)
    those = Counter(pair[side] for pair in pairs)
    return sorted(number for number, count in those.items() if count == all_[number] >= 2)


def name_hosts(ranks: list[int], hosts: list[Host]) -> str:
    """Names hosts if ``ranks`` are all ranks of these hosts, else the ranks too."""
    whole = [host for host in hosts if set(host.ranks) & set(ranks)]
    named = [host.name for host in whole]
    if sum(len(host.ranks) for host in whole) == len(ranks):
        return f"{'host' if len(named) == 1 else 'hosts'} {some(named)}:"
    return f"{name_ranks(ranks)} ({some(named)}):"


def name_ranks(ranks: list[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {some([str(rank) for rank in ranks])}"


def some(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more
