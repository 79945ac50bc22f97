"""One-sided copies between a user and owners of memory: who is measured, where, and how."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from . import build, figures, places, report, rounds
from .figures import KIB, MIB, OURS
from .jobs import Job, JobError, Part, Spec, Way
from .measured import Measured
from .places import Pythons, wire_s

READ, WRITE = "read", "write"
WAYS = (READ, WRITE)
MEMCPY = "memcpy"
PLAIN, APART = f"{OURS} plain memory", f"{OURS} TCP"
NIXL, MOONCAKE, TORCH, TENSORFLOW = "NIXL", "Mooncake", "torch RPC", "TensorFlow gRPC"
SIZES = [4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB]
QUICK_SIZES = [4 * KIB, MIB]
SHARED_BYTES = 64 * MIB
PACKAGES = ["numpy", "mooncake-transfer-engine-non-cuda"]
# Its wheel asks for a torch with CUDA, which it does not import.
PACKAGES_ALONE = ["nixl-cu12"]


@dataclass(frozen=True)
class Peer:
    """Who is measured. `module` tells whether a Python has it."""

    driver: str
    words: tuple[str, ...] = ()
    module: str = "numpy"
    package: str = "numpy"
    between_hosts: bool = True  # too
    most_bytes: int = 1 << 62  # of one tensor
    state_dict: bool = True  # too
    polls: bool = False  # a thread of its own polls, so that it is stopped while it waits

    def can_copy(self, size: int, tensors: int) -> bool:
        return (self.state_dict or tensors == 1) and size // tensors <= self.most_bytes


PEERS = {
    MEMCPY: Peer("memcpy", between_hosts=False),
    OURS: Peer("ringcoll", ("mapped",), OURS, OURS),
    PLAIN: Peer("ringcoll", ("plain",), OURS, OURS, between_hosts=False, state_dict=False),
    APART: Peer("ringcoll", ("mapped", "apart"), OURS, OURS, False, state_dict=False),
    NIXL: Peer("nixl", (), "nixl_cu12", "nixl-cu12", polls=True),
    MOONCAKE: Peer("mooncake", (), "mooncake", "mooncake-transfer-engine-non-cuda"),
    TORCH: Peer("torch", (), "torch", "torch", polls=True),
    # A read and a write make three tensors of the size, and gRPC copies them once more.
    TENSORFLOW: Peer("tensorflow", (), "tensorflow", "tensorflow", True, 64 * MIB, polls=True),
}


@dataclass
class Copies(Measured):
    """What was measured in a place, in one way. A key has the number of owners and the user."""

    tensors: int = 1  # that one call copies

    @property
    def place(self) -> str:
        return f"two hosts at {self.rate}" if self.rate else "one host"

    @property
    def what(self) -> str:
        return f"{self.way} of {self.tensors} tensors" if self.tensors > 1 else self.way

    def peers(self) -> list[str]:
        return [name for name in PEERS if self.has(name)]


@dataclass
class Shares:
    """A read of SHARED_BYTES from one, two ... owners, each on a host of its own."""

    rate: str
    size: int
    rounds: dict[int, list[float | None]] = field(default_factory=dict)  # by owners: seconds

    def links(self, owners: int) -> float | None:
        """The bytes a second of so many owners, in links: the median over rounds."""
        seconds = figures.middle(self.rounds.get(owners, []))
        return wire_s(self.rate, self.size) / seconds if seconds else None

    def added(self, owners: int) -> float | None:
        """What the last of so many owners adds, in links: the median over rounds."""
        wire = wire_s(self.rate, self.size)
        ours, before = self.rounds.get(owners, []), self.rounds.get(owners - 1, [])
        pairs = zip(ours, before or [None] * len(ours), strict=False)
        gained = [wire / now - (wire / less if less else 0) for now, less in pairs if now]
        return median(gained) if gained else None


# --- Who is here ---


def install(directory: Path) -> None:
    """NIXL and Mooncake from PyPI, in a virtual environment of their own."""
    pip = [str(directory / "bin/pip"), "install", "--quiet"]
    build.run([sys.executable, "-m", "venv", str(directory)], "venv")
    build.run([*pip, *PACKAGES], " ".join(PACKAGES))
    build.run([*pip, "--no-deps", *PACKAGES_ALONE], " ".join(PACKAGES_ALONE))


def find(
    pythons: Pythons, names: list[str], most_bytes: int, parts: list[Part]
) -> tuple[list[Spec], dict[str, str]]:
    """How the named peers are started, and of those that are not here why not."""
    specs, missing = [], {}
    for name in names:
        peer = PEERS[name]
        found = pythons.find(peer)
        if not found:
            missing[name] = f"{peer.package} is not installed for {' or '.join(pythons.paths)}"
            continue
        python, version = found
        driver = str(build.DRIVERS / f"one_sided_{peer.driver}.py")
        most = [str(most_bytes), *peer.words]
        command = [python, driver, "{socket}", "{directory}", "{ranks}", *most]
        label = f"NumPy {version}" if name == MEMCPY else version
        spec = Spec(name, command, label, pause_when_idle=peer.polls, parts=parts)
        specs.append(spec)
    return specs, missing


# --- Where ---


def parts_of(rate: str, owners: int = 1) -> AbstractContextManager[list[Part]]:
    """Where the owners and the user are: on one host, or each on its own. The links of owners have
    the rate; that of the user has no limit if there are several owners."""
    return places.parts_of([*[rate] * owners, rate if owners == 1 else ""])


# --- How ---


@dataclass
class Settings:
    pythons: Pythons
    names: list[str]
    sizes: list[int]
    rounds: int
    visit_s: float
    size_limit_s: float
    logs: Path
    dict_tensors: int
    dict_bytes: int


def measure(
    rate: str, settings: Settings, note: Callable[[dict[str, str], dict[str, str]], None]
) -> list[Copies]:
    """In one place: all sizes, reads and then writes, and reads of a state dict. `note` is told
    versions, and who is missing and why."""

    def new(way: str, tensors: int = 1) -> Copies:
        return Copies(rate, way, report.Results(way, OURS, "", [], {}, {}), tensors=tensors)

    found = [*map(new, WAYS), new(READ, settings.dict_tensors)]
    rounds.progress(found[0].place)
    names = [name for name in settings.names if not rate or PEERS[name].between_hosts]
    with parts_of(rate) as parts:
        most = max(*settings.sizes, settings.dict_bytes)
        specs, missing = find(settings.pythons, names, most, parts)
        note({spec.name: spec.version for spec in specs}, missing)
        started = rounds.start_jobs(specs, 2, settings.logs, found[0].results)
        try:
            rounds.measure_idle(started, 2, found[0].results)
            for copies in found:
                rounds.progress(f" {copies.what}")
                _measure_way(started, copies, settings)
        finally:
            rounds.close_jobs(started)
    return found


def _measure_way(started: rounds.Jobs, copies: Copies, settings: Settings) -> None:
    way = f"{copies.way}/{copies.tensors}" if copies.tensors > 1 else copies.way
    for size in settings.sizes if copies.tensors == 1 else [settings.dict_bytes]:
        ways: rounds.Jobs = {
            name: Way(job, way, {})
            for name, job in started.items()
            if isinstance(job, Job) and PEERS[name].can_copy(size, copies.tensors)
        }
        for name in list(ways):
            _verify(ways, name, size, copies.results)
        plan = rounds.Plan([size], settings.rounds, settings.visit_s, settings.size_limit_s)
        chosen = set(ways)
        rounds.run_rounds(ways, copies.ranks, plan, copies.results)
        _drop_failed(started, chosen - set(ways))


def _verify(ways: rounds.Jobs, name: str, size: int, results: report.Results) -> None:
    """Copies once and compares. Whoever copies wrongly is not measured at this size."""
    try:
        ways[name].ask(f"prepare {size}", "prepared")
        ways[name].ask(f"run {size} 1 1", "times")
        ways[name].ask(f"verify {size}", "verified")
    except JobError as error:
        text = f"{figures.format_size(size)}: {error}"
        results.failures.append(text)
        rounds.progress(f"  NOT MEASURED: {text}")
        ways.pop(name).kill()


def _drop_failed(started: rounds.Jobs, names: set[str]) -> None:
    for name in names:
        started.pop(name)


def measure_shares(rate: str, most_owners: int, settings: Settings) -> tuple[Shares, list[str]]:
    """Also returns what failed."""
    size = min(SHARED_BYTES, max(settings.sizes))
    shares = Shares(rate, size)
    results = report.Results("shares", OURS, "", [], {}, {})
    rounds.progress(f"shared by up to {most_owners} owners, {rate}")
    names = {f"{n} of {most_owners} owners": n for n in range(1, most_owners + 1)}
    with parts_of(rate, most_owners) as parts:
        specs, missing = find(settings.pythons, [OURS], size, parts)
        ranks = most_owners + 1
        started = rounds.start_jobs(specs, ranks, settings.logs, results)
        job = started.get(OURS)
        if not isinstance(job, Job):
            return shares, [*missing.values(), *results.failures]
        try:
            ways: rounds.Jobs = {name: Way(job, f"read-{n}", {}) for name, n in names.items()}
            for name in list(ways):
                _verify(ways, name, size, results)
            plan = rounds.Plan([size], settings.rounds, settings.visit_s)
            rounds.run_rounds(ways, ranks, plan, results)
        finally:
            rounds.close_jobs(started)
    for (_, name, _), seconds in results.rounds.items():
        shares.rounds[names[name]] = seconds
    return shares, results.failures


def share_document(shares: Shares) -> dict[str, Any]:
    """As JSON has it."""
    owners = [
        {"owners": n, "links": shares.links(n), "added": shares.added(n), "rounds_s": seconds}
        for n, seconds in shares.rounds.items()
    ]
    return {"rate": shares.rate, "bytes": shares.size, "owners": owners}
