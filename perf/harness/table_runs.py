"""Pushes and pulls of parameter tables: who is measured, where, and how."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import build, figures, places, report, rounds
from .figures import KIB, MIB, OURS
from .jobs import Job, JobError, Part, Spec, Way
from .measured import Measured
from .places import Pythons, wire_s

PUSH, PULL, PUSH_PULL = "push", "pull", "push_pull"
WAYS = (PUSH, PULL, PUSH_PULL)
DENSE, SPARSE = "dense", "sparse"
KINDS = (DENSE, SPARSE)  # in this order: see drivers/tables_mxnet.py
ROW_BYTES = 256  # 64 floats
MEMCPY, ALLREDUCE, TORCH, TENSORFLOW = "memcpy", "allreduce", "torch RPC", "TensorFlow gRPC"
BACKED, APART, RDMA = f"{OURS} 1 backup", f"{OURS} TCP", f"{OURS} RDMA"
MXNET, MXNET_OURS = "MXNet", f"MXNet over {OURS}"
MXNET_BARE = f"{MXNET_OURS} without backup"
DENSE_SIZES = [4, KIB, 16 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB]
ROWS = [64, 1024, 16_384, 131_072, 1_000_000]
_RDMA_DEVICES = Path("/sys/class/infiniband")
QUICK_DENSE_SIZES, QUICK_ROWS = [16 * KIB, MIB], [64]


@dataclass(frozen=True)
class Peer:
    """Who is measured. `module` tells whether a Python has it."""

    driver: str
    words: tuple[str, ...] = ()
    module: str = "numpy"
    package: str = "numpy"
    between_hosts: bool = True  # too
    least_servers: int = 1
    ways: Collection[str] = WAYS
    most_bytes: int = 1 << 62
    polls: bool = False  # a thread of its own polls, so that it is stopped while it waits
    needs_rdma: bool = False
    environment: tuple[tuple[str, str], ...] = ()


PEERS = {
    MEMCPY: Peer("memcpy", between_hosts=False),
    OURS: Peer("ringcoll", ("0",), OURS, OURS),
    BACKED: Peer("ringcoll", ("1",), OURS, OURS, least_servers=2),
    APART: Peer("ringcoll", ("0", "tcp"), OURS, OURS, between_hosts=False),
    RDMA: Peer("ringcoll", ("0", "verbs"), OURS, OURS, between_hosts=False, needs_rdma=True),
    ALLREDUCE: Peer("allreduce", (), OURS, OURS, ways=(PUSH_PULL,)),
    MXNET: Peer("mxnet", ("dist_sync",), "mxnet", "mxnet", polls=True),
    MXNET_OURS: Peer("mxnet", ("ringcoll",), "ringcoll.mxnet", "mxnet"),
    MXNET_BARE: Peer(
        "mxnet",
        ("ringcoll",),
        "ringcoll.mxnet",
        "mxnet",
        least_servers=2,
        environment=(("RINGCOLL_MXNET_REPLICAS", "0"),),
    ),
    TORCH: Peer("torch", (), "torch", "torch", polls=True),
    # Several tensors of the size are made by a call, and gRPC copies them once more.
    TENSORFLOW: Peer("tensorflow", (), "tensorflow", "tensorflow", most_bytes=64 * MIB, polls=True),
}


@dataclass(frozen=True)
class Place:
    """How many servers and workers there are, each on a host of its own if links have a rate."""

    rate: str = places.ONE_HOST
    servers: int = 1
    workers: int = 1

    @property
    def ranks(self) -> int:
        return self.servers + self.workers

    @property
    def shape(self) -> str:
        servers, workers = (
            f"{count} {word}{'s' * (count > 1)}"
            for count, word in ((self.servers, "server"), (self.workers, "worker"))
        )
        return f"{servers}, {workers}"

    def __str__(self) -> str:
        return f"{self.shape}, {f'hosts at {self.rate}' if self.rate else 'one host'}"


def parse_shape(text: str) -> tuple[int, int]:
    """2x4: servers and workers. Raises ValueError."""
    servers, _, workers = text.partition("x")
    if not (servers.isdecimal() and workers.isdecimal() and int(servers) and int(workers)):
        raise ValueError(f'"{text}" is not a number of servers and of workers such as 2x4')
    return int(servers), int(workers)


@dataclass
class Calls(Measured):
    """What was measured in a place, of dense or sparse tables, in one way."""

    kind: str = DENSE
    place: Place = field(default_factory=Place)

    @classmethod
    def new(cls, place: Place, kind: str, way: str) -> Calls:
        results = report.Results(way, OURS, "", [], {}, {})
        if kind == SPARSE:
            results.labels = {rows * ROW_BYTES: f"{rows:,} rows" for rows in ROWS}
        return cls(place.rate, way, results, place.ranks, kind, place)

    @property
    def what(self) -> str:
        return f"{self.way}, {self.kind}"

    def label(self, size: int) -> str:
        if self.kind == SPARSE:
            return f"{size // ROW_BYTES:,} rows"
        return figures.format_size(size)

    def peers(self) -> list[str]:
        return [name for name in PEERS if self.has(name)]

    def link_bytes(self, size: int) -> int:
        """That of a worker, or that of a server, which all workers share."""
        return max(size, size * self.place.workers // self.place.servers)

    def wire_s(self, size: int) -> float:
        """A push and a pull may use both directions of a link at once."""
        return wire_s(self.rate, self.link_bytes(size))

    def bytes_s(self, peer: str, size: int) -> float | None:
        """Of all workers together, in one direction."""
        seconds = self.seconds(peer, size)
        return size * self.place.workers / seconds if seconds else None

    def sides_s_a_gib(self, peer: str, size: int) -> tuple[float, float] | None:
        """Processor seconds of all workers, and of all servers, for a GiB of one of the workers,
        divided by their number."""
        spent = self.processor_s_a_gib(peer, size)
        if spent is None:
            return None
        servers, workers = self.place.servers, self.place.workers
        return sum(spent[servers:]) / workers, sum(spent[:servers]) / workers


def find(
    pythons: Pythons, names: list[str], place: Place, most_bytes: int, parts: list[Part]
) -> tuple[list[Spec], dict[str, str]]:
    """How the named peers are started, and of those that are not here why not."""
    specs, missing = [], {}
    for name in names:
        peer = PEERS[name]
        if peer.needs_rdma and not any(_RDMA_DEVICES.glob("*")):
            missing[name] = "there is no RDMA device: ci/rdma-vm has one"
            continue
        found = pythons.find(peer)
        if not found:
            missing[name] = f"{peer.module} is not installed for {' or '.join(pythons.paths)}"
            continue
        python, version = found
        words = [str(most_bytes), str(place.servers), *peer.words]
        spec = driver_spec(name, python, f"tables_{peer.driver}", words, parts)
        spec.version = f"NumPy {version}" if name == MEMCPY else version
        specs.append(spec)
    return specs, missing


def driver_spec(name: str, python: str, driver: str, words: list[str], parts: list[Part]) -> Spec:
    """How a driver of tables is started."""
    peer = PEERS[name]
    command = [python, str(build.DRIVERS / f"{driver}.py"), "{socket}", "{directory}", "{ranks}"]
    return Spec(
        name,
        [*command, *words],
        environment=dict(peer.environment),
        pause_when_idle=peer.polls,
        parts=parts,
    )


@dataclass
class Settings:
    pythons: Pythons
    names: list[str]
    ways: list[str]
    rounds: int
    visit_s: float
    size_limit_s: float
    logs: Path


Note = Callable[[dict[str, str], dict[str, str]], None]


def measure(
    place: Place, sizes: dict[str, list[int]], settings: Settings, note: Note
) -> list[Calls]:
    """In one place: of each kind of tables all sizes, each way. `note` is told versions, and who is
    missing and why."""
    rounds.progress(str(place))
    names = [
        name
        for name in settings.names
        if PEERS[name].least_servers <= place.servers
        and (PEERS[name].between_hosts or not place.rate)
    ]
    found = [Calls.new(place, kind, way) for kind in KINDS if sizes[kind] for way in settings.ways]
    if not found:
        return []
    with places.parts_of([place.rate] * place.ranks) as parts:
        most = max(size for of_kind in sizes.values() for size in of_kind)
        specs, missing = find(settings.pythons, names, place, most, parts)
        note({spec.name: spec.version for spec in specs}, missing)
        started = rounds.start_jobs(specs, place.ranks, settings.logs, found[0].results)
        try:
            rounds.measure_idle(started, place.ranks, found[0].results)
            for calls in found:
                rounds.progress(f" {calls.what}")
                _measure_way(started, calls, sizes[calls.kind], settings)
        finally:
            rounds.close_jobs(started)
    return found


def _measure_way(started: rounds.Jobs, calls: Calls, sizes: list[int], settings: Settings) -> None:
    for size in sizes:
        ways: rounds.Jobs = {
            name: Way(job, f"{calls.way}/{calls.kind}", {})
            for name, job in started.items()
            if isinstance(job, Job)
            and calls.way in PEERS[name].ways
            and size <= PEERS[name].most_bytes
        }
        chosen = set(ways)
        for name in list(ways):
            _verify(ways, name, size, calls)
        plan = rounds.Plan([size], settings.rounds, settings.visit_s, settings.size_limit_s)
        rounds.run_rounds(ways, calls.ranks, plan, calls.results)
        for name in chosen - set(ways):
            del started[name]


def _verify(ways: rounds.Jobs, name: str, size: int, calls: Calls) -> None:
    """Makes the table, calls once, and compares. Whoever has wrong values is not measured."""
    try:
        ways[name].ask(f"prepare {size}", "prepared")
        ways[name].ask(f"run {size} 1 1", "times")
        ways[name].ask(f"verify {size}", "verified")
    except JobError as error:
        text = f"{calls.label(size)}: {error}"
        calls.results.failures.append(text)
        rounds.progress(f"  NOT MEASURED: {text}")
        ways.pop(name).kill()


def document(calls: Calls) -> list[dict[str, Any]]:
    """As JSON has them."""
    return [
        {
            "place": str(calls.place),
            "servers": calls.place.servers,
            "workers": calls.place.workers,
            "way": calls.way,
            "kind": calls.kind,
            "bytes": size,
            "peer": peer,
            "median_s": calls.seconds(peer, size),
            "ratio_to_ours": calls.ratio(peer, size),
            "part_of_wire": calls.part_of_wire(peer, size),
            "processor_s_a_gib": calls.sides_s_a_gib(peer, size),
            "rounds_s": seconds,
        }
        for (_, peer, size), seconds in calls.results.rounds.items()
    ]
