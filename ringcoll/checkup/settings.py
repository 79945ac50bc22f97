"""Compares the reports of all ranks. Finds missing ranks, and versions, knobs and interfaces that
differ from the others'. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from ringcoll.cluster.hosts import Host, Report, name_hosts, name_ranks, some
from ringcoll.findings import FAILED, NOTE, Finding

_MUST_AGREE = {"ringcoll", "horovod"}


def find_absent(reports: Mapping[int, Report], size: int) -> Iterator[Finding]:
    absent = [rank for rank in range(size) if rank not in reports]
    if absent:
        yield Finding(
            "ranks",
            FAILED,
            f"{name_ranks(absent)} of {size} did not come to the meeting place. Their output says "
            "why; without any, they were not started or cannot reach the meeting place",
        )


def find_failures(reports: Mapping[int, Report]) -> Iterator[Finding]:
    """Failures that doctor found on ranks other than 0. Rank 0's own findings are printed
    anyway."""
    where: dict[tuple[str, str], list[int]] = {}
    for rank, report in reports.items():
        for part, detail in report["failed"]:
            where.setdefault((part, detail), []).append(rank)
    for (part, detail), ranks in where.items():
        if ranks != [0]:
            yield Finding(part, FAILED, f"{name_ranks(ranks)}: {detail}")


def compare_settings(
    reports: Mapping[int, Report], hosts: list[Host], agreement: Mapping[str, str]
) -> Iterator[Finding]:
    """Finds versions, knobs and interfaces that differ. ``agreement``, by knob, is from ``ringcoll
    info``; a knob that it lacks must not differ."""
    for name, values in sorted(_by_name(reports, "versions").items()):
        status = FAILED if name in _MUST_AGREE else NOTE
        remedy = "install the same on all hosts"
        yield from _differing(f"version of {name}", status, values, hosts, remedy)
    for name, values in sorted(_by_name(reports, "knobs").items()):
        status = NOTE if agreement.get(name) == "own" else FAILED
        if agreement.get(name) == "rank 0's":
            values = {rank: value for rank, value in values.items() if value or rank == 0}
        remedy = "set it to the same value on all ranks; does the launcher pass it on?"
        yield from _differing(name, status, values, hosts, remedy)
    for name, unit in (("mtu", "bytes"), ("speed", "Mb/s")):
        known = {
            rank: f"{host.interface[name]} {unit}"
            for host in hosts
            for rank in host.ranks
            if host.interface.get(name)
        }
        remedy = {
            "mtu": "large packets get lost where a smaller one follows: give the interfaces and "
            "the switches between them one MTU (ip link set dev NAME mtu BYTES)",
            "speed": "a cable, port or setting made the link slow: ethtool NAME shows it",
        }[name]
        yield from _differing(f"{name.upper()} of the interface", FAILED, known, hosts, remedy)


def _by_name(reports: Mapping[int, Report], part: str) -> dict[str, dict[int, str]]:
    """Name of a setting → rank → value. The value is "none" for a rank without the setting."""
    names = {name for report in reports.values() for name in report[part]}
    return {
        name: {rank: str(report[part].get(name, "none")) for rank, report in reports.items()}
        for name in names
    }


def _differing(
    part: str, status: str, values: Mapping[int, str], hosts: list[Host], remedy: str
) -> Iterator[Finding]:
    counts = Counter(values.values())
    if len(counts) < 2:
        return
    usual, times = counts.most_common(1)[0]
    groups = [
        f"{name_hosts([r for r, v in values.items() if v == value], hosts)} {_quote(value)}"
        for value in counts
        if value != usual or 2 * times <= len(values)
    ]
    rest = f", elsewhere {_quote(usual)}" if len(groups) < len(counts) else ""
    yield Finding(part, status, f"{'; '.join(groups)}{rest}: {remedy}")


def find_containers(reports: Mapping[int, Report], hosts: list[Host]) -> Iterator[Finding]:
    machines: dict[str, list[str]] = {}
    for host in hosts:
        machines.setdefault(reports[host.first]["machine"], []).append(host.name)
    for names in machines.values():
        if len(names) > 1:
            yield Finding(
                "hosts",
                NOTE,
                f"{some(names)} are on one machine, but cannot map one another's memory "
                "(containers, each with processes of its own), and so talk over the network: start "
                "the ranks of a machine in one container, or let them share its pid namespace",
            )


def _quote(value: str) -> str:
    return value or "(empty)"
