"""Messages with tags: who is measured, and the two ways to send them."""

from __future__ import annotations

from pathlib import Path

from . import build, peers
from .figures import KIB, MIB, OURS, Target
from .jobs import Job, Spec, Way
from .peers import BEFORE
from .rounds import Jobs

OPEN_MPI = "Open MPI"
RANKS = 2
TRANSPORTS = ("shm", "tcp")
WINDOW = 64  # messages under way

PING, STREAM = "ping-pong", "window"
SIZES = {
    PING: [4, 64, 512, KIB, 4 * KIB, 8 * KIB, 16 * KIB, 64 * KIB, MIB],
    STREAM: [64, KIB, 8 * KIB, 64 * KIB, MIB, 4 * MIB, 16 * MIB],
}
QUICK_SIZES = {PING: [64, 64 * KIB], STREAM: [64, 64 * KIB]}
# What holds on one host by its own memory.
TARGETS = {
    PING: [Target(OPEN_MPI, RANKS, 1 / 1.2)],
    STREAM: [Target(OPEN_MPI, RANKS, 1, least=MIB)],
}
MPI_OVER = {"shm": [], "tcp": ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self"]}


def ways_of(jobs: Jobs, way: str) -> Jobs:
    """The jobs, as they send in that way."""
    if way == PING:
        return jobs
    settings = {"PERF_WINDOW": str(WINDOW)}
    return {name: Way(job, way, settings) for name, job in jobs.items() if isinstance(job, Job)}


def message_s(way: str, seconds: float) -> float:
    """Of a message, from what a call takes: one there and one back, or a window of them."""
    return seconds / (2 if way == PING else 2 * WINDOW)


def ours(options: peers.Options, library: Path, name: str, transport: str) -> Spec:
    driver = options.build / f"{name.replace(' ', '_')}_messages"
    source = build.DRIVERS / "ringcoll_messages.c"
    program = build.compile_for(library, build.INCLUDE, source, driver)
    environment = {"LD_LIBRARY_PATH": str(library.parent), "RINGCOLL_TRANSPORT": transport}
    command = [str(program), "{socket}", "{ranks}", "file://{directory}"]
    return Spec(name, command, "", environment)


def open_mpi(options: peers.Options, transport: str) -> Spec:
    """Open MPI 5 from PyPI, where it was installed; else the system's."""
    launcher, compiler, flags, version = peers.open_mpi_programs(options)
    source = build.DRIVERS / "mpi_messages.c"
    driver = peers.mpi_driver(f"openmpi-{version}", options, compiler, launcher, flags, source)
    words = ["--oversubscribe", *MPI_OVER[transport], "-n", "{ranks}", str(driver), "{socket}"]
    environment = peers.AS_ROOT | {key.replace("OMPI", "PRTE"): "1" for key in peers.AS_ROOT}
    return Spec(OPEN_MPI, [launcher, *words], version, environment)


def specs(
    options: peers.Options, library: Path, transport: str
) -> tuple[list[Spec], dict[str, str]]:
    """Who can be started, and for the others why not."""
    found, missing = [ours(options, library, OURS, transport)], {}
    if options.before:
        found.append(ours(options, options.before, BEFORE, transport))
    try:
        found.append(open_mpi(options, transport))
    except (peers.Missing, build.BuildError) as reason:
        missing[OPEN_MPI] = str(reason)
    return found, missing
