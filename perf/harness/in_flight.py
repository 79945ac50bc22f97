"""Calls in flight: where they are measured, and the ways to divide a vector into calls."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from . import cluster_peers, figures
from .figures import KIB, MIB, OURS
from .jobs import Job, Spec, Way
from .rounds import Jobs
from .shapes import Case

CALLS = 16
ONE, ONE_STARTED = "one", "one, started"
IN_TURN, IN_FLIGHT = f"{CALLS} in turn", f"{CALLS} in flight"
ONE_GROUP, TWO_GROUPS = f"{CALLS} in a group", f"{CALLS // 2} in each of two groups"
SIZES = [CALLS * size for size in (4 * KIB, 64 * KIB, MIB)]


def _settings(calls: int, started: int, groups: int) -> dict[str, str]:
    return {
        "PERF_CALLS": str(calls),
        "PERF_START": str(started),
        "PERF_GROUPS": str(groups),
    }


WAYS = {
    ONE: _settings(1, 0, 0),
    ONE_STARTED: _settings(1, 1, 0),
    IN_TURN: _settings(CALLS, 0, 0),
    IN_FLIGHT: _settings(CALLS, 1, 0),
    ONE_GROUP: _settings(CALLS, 1, 1),
    TWO_GROUPS: _settings(CALLS, 1, 2),
}


@dataclass(frozen=True)
class Place:
    """Where ranks are: on this host, joined by a transport, or on the emulated hosts of a case."""

    ranks: int
    transport: str = "auto"
    case: Case | None = None

    def __str__(self) -> str:
        return str(self.case) if self.case else f"{self.ranks} ranks, {self.transport}"


def key(library: str, way: str) -> str:
    """Under which the times of a library's way are kept."""
    return way if library == OURS else f"{library}: {way}"


def label(size: int) -> str:
    return f"{CALLS} × {figures.format_size(size // CALLS)}"


def ways_of(jobs: Jobs) -> Jobs:
    """All ways of each library's job, side by side in its processes."""
    return {
        key(library, way): Way(job, way.replace(" ", "-"), settings)
        for library, job in jobs.items()
        if isinstance(job, Job)
        for way, settings in WAYS.items()
    }


def spec_of(library: str, driver: Path, environment: dict[str, str], place: Place) -> Spec:
    command = [str(driver), "{socket}", "{ranks}", "file://{directory}"]
    return Spec(library, command, "", environment | {"RINGCOLL_TRANSPORT": place.transport})


@contextlib.contextmanager
def placed(specs: list[Spec], place: Place) -> Iterator[list[Spec]]:
    """The jobs, as they are started there; hosts are there meanwhile."""
    if not place.case:
        yield specs
        return
    with (
        tempfile.TemporaryDirectory(prefix="perf-") as folder,
        cluster_peers.make_cluster(place.case) as cluster,
    ):
        here = cluster_peers.Here(place.case, cluster, Path(folder))
        yield [cluster_peers.in_parts(spec, here) for spec in specs]
