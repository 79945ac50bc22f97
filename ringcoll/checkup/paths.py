"""Finds hosts that do not reach one another, and paths on which large packets get lost. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from ringcoll.cluster.hosts import Host, Views, everywhere, some
from ringcoll.cluster.pair import MAX_MTU, View
from ringcoll.findings import FAILED, NOTE, Finding


def find_unreached(hosts: list[Host], views: Views) -> Iterator[Finding]:
    """Hosts and pairs that do not reach one another. A note for those that do, but not at their
    first address."""
    yield from _unreached(
        hosts, views, FAILED, {pair: view for pair, view in views.items() if not view.reached}
    )
    yield from _unreached(
        hosts,
        views,
        NOTE,
        {pair: view for pair, view in views.items() if view.reached and view.error},
    )


def _unreached(
    hosts: list[Host], views: Views, status: str, lost: dict[tuple[int, int], View]
) -> Iterator[Finding]:
    for side, says, remedy in (
        (1, "is reached by no other host", "its firewall, or the interface that it was given"),
        (0, "reaches no other host", "its routes, or a firewall for what leaves it"),
    ):
        for number in everywhere(set(lost), views, side):
            pairs = [pair for pair in lost if pair[side] == number]
            places = some(sorted({_address(hosts[b]) for _, b in pairs}))
            view = lost[pairs[0]]
            for pair in pairs:
                del lost[pair]
            detail = f"{says} at {places} ({view.error}): look at {remedy}{_elsewhere(view)}"
            yield Finding(f"host {hosts[number].name}", status, detail)
    for (a, b), view in sorted(lost.items(), key=lambda item: item[0]):
        both = (b, a) in lost
        if both and b < a:
            continue
        way = "do not reach one another" if both else "the first does not reach the second"
        others = ", though others reach both" if len(hosts) > 2 else ""
        yield Finding(
            f"hosts {hosts[a].name} and {hosts[b].name}",
            status,
            f"{way} at {_address(hosts[b])} ({view.error}){others}: look for a firewall's rule or "
            f"a route for these two{_elsewhere(view)}",
        )


def _address(host: Host) -> str:
    return str(host.interface.get("address", "no address"))


def _elsewhere(view: View) -> str:
    if not view.reached:
        return ""
    return (
        f"; {view.address} does answer: ringcoll takes a network that joins all hosts, and "
        "RINGCOLL_INTERFACE names it at once"
    )


def find_narrow(hosts: list[Host], views: Views) -> Iterator[Finding]:
    """Paths with a smaller MTU than the interfaces at both ends. compare_settings() finds
    interfaces with different MTUs."""
    narrow = {}
    for (a, b), view in views.items():
        ends = [hosts[each].interface.get("mtu", 0) for each in (a, b)]
        if view.path_mtu and view.path_mtu < min([MAX_MTU, *ends]):
            narrow[a, b] = view.path_mtu
        elif view.bytes_per_s == 0:
            yield Finding(
                f"hosts {hosts[a].name} and {hosts[b].name}",
                FAILED,
                "connect, and nothing large comes from the second to the first: most likely "
                "packets of full length get lost on the way; compare the MTU of all switches and "
                "tunnels between them",
            )
    remedy = "a switch port, bridge or tunnel on the way carries less than the interfaces send"
    if len(narrow) == len(views) and len(hosts) > 2:
        yield Finding(
            "path MTU", FAILED, f"{min(narrow.values())} bytes between all hosts: {remedy}"
        )
        return
    for number in everywhere(set(narrow), views, 0) + everywhere(set(narrow), views, 1):
        pairs = {pair for pair in narrow if number in pair}
        if pairs:
            size = min(narrow.pop(pair) for pair in pairs)
            yield Finding(
                f"path MTU of host {hosts[number].name}",
                FAILED,
                f"{size} bytes to or from all others: {remedy}; look at its own switch port first",
            )
    for a, b in sorted(narrow):
        yield Finding(
            f"path MTU of hosts {hosts[a].name} and {hosts[b].name}",
            FAILED,
            f"{narrow[a, b]} bytes from the first to the second: {remedy}",
        )
