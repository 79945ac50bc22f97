"""Set-up in stages: Debian packages, the virtual environment, ringcoll, Horovod with the backend.

Each stage leaves a stamp with the hash of its inputs, and is skipped while the hash is the same.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from enum import IntEnum
from pathlib import Path

from support.stages import ROOT, VENV, StageFailed, in_background, must, run, say, stage

CI = ROOT / "ci"
PYTHON = VENV / "bin" / "python"
MXNET = VENV / "mxnet"  # a virtual environment: MXNet wants an older NumPy
_STAMPS = VENV / ".stamps"
_HOROVOD_LIMIT_S = 3600  # while other work runs
_PIP = ("-m", "pip", "--disable-pip-version-check")


class Level(IntEnum):
    """How much is set up; each level includes the earlier ones."""

    TOOLS = 1
    RINGCOLL = 2
    HOROVOD = 3


def _lines(path: Path) -> list[str]:
    stripped = (line.split("#")[0].strip() for line in path.read_text().splitlines())
    return [line for line in stripped if line]


def _hash(files: Iterable[Path], *more: str) -> str:
    digest = hashlib.sha256("\0".join(more).encode())
    for path in sorted(files):
        digest.update(f"\0{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def _sources(*folders: str) -> list[Path]:
    return [
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix not in (".pyc", ".so") and "__pycache__" not in path.parts
    ]


def _stamped(name: str, key: str) -> bool:
    stamp = _STAMPS / name
    return stamp.exists() and stamp.read_text() == key


def _stamp(name: str, key: str) -> None:
    _STAMPS.mkdir(exist_ok=True)
    (_STAMPS / name).write_text(key)


def _missing_packages(listed_in: str) -> list[str]:
    wanted = _lines(CI / listed_in)
    if not shutil.which("dpkg-query"):
        say(f"this is no Debian: the packages of ci/{listed_in} are taken to be there")
        return []
    query = ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *wanted]
    listed = subprocess.run(query, capture_output=True, text=True, check=False).stdout.splitlines()
    installed = {line.split()[0] for line in listed if line.endswith(" installed")}
    return [package for package in wanted if package not in installed]


def packages(listed_in: str = "apt-packages.txt") -> None:
    """Installs the missing packages of a list. Without root it names them and stops."""
    missing = _missing_packages(listed_in)
    if not missing:
        return
    if os.geteuid() != 0:
        raise StageFailed(
            "these packages are missing, and only root can install them:\n    apt-get install "
            + " ".join(missing)
        )
    with stage("Debian packages: " + " ".join(missing)):
        quiet = {"DEBIAN_FRONTEND": "noninteractive"}
        must(run(["apt-get", "update"], "apt-update", env=quiet))
        install = ["apt-get", "install", "-y", "--no-install-recommends", *missing]
        must(run(install, "apt-install", env=quiet, finish=True))


@functools.cache
def base_python() -> str:
    """Returns a Python 3.11 that can make virtual environments and has headers for extensions."""
    probe = (
        "import ensurepip, pathlib, sys, sysconfig, venv\n"
        "assert sys.version_info[:2] == (3, 11), sys.version\n"
        "assert pathlib.Path(sysconfig.get_path('include'), 'Python.h').exists(), 'no Python.h'\n"
    )
    reasons = []
    for name in ("python3.11", "/usr/bin/python3.11", "python3"):
        path = shutil.which(name)
        if not path:
            reasons.append(f"{name}: not found")
            continue
        tried = subprocess.run([path, "-c", probe], capture_output=True, text=True, check=False)
        if tried.returncode == 0:
            return path
        reasons.append(f"{path}: {tried.stderr.strip().splitlines()[-1]}")
    raise StageFailed("no Python 3.11 with venv and headers:\n    " + "\n    ".join(reasons))


def environment() -> None:
    """Makes .venv in the checkout, with the pinned packages of ci/requirements.txt."""
    key = _hash([CI / "requirements.txt"], "2")
    if _stamped("packages", key):
        return
    works = PYTHON.exists() and subprocess.run([PYTHON, "-c", ""], check=False).returncode == 0
    if not works:
        with stage(f"virtual environment .venv from {base_python()}"):
            must(run([base_python(), "-m", "venv", "--clear", VENV], "venv"))
    with stage("packages of ci/requirements.txt"):
        pins = str(CI / "requirements.txt")
        # --no-deps: all packages are listed, and tf-keras wants `tensorflow` although
        # tensorflow-cpu is there. pip compiles to bytecode, though that takes as long as the rest.
        # Where Python may not write bytecode (PYTHONDONTWRITEBYTECODE), hundreds of processes would
        # each compile torch again.
        must(run([PYTHON, *_PIP, "install", "--no-deps", "-r", pins], "pip-requirements"))
    _complete_torch()
    _stamp("packages", key)


def _complete_torch() -> None:
    """Installs CUDA's libraries if PyPI's torch needs them: only that build cannot be imported
    without."""
    if subprocess.run([PYTHON, "-c", "import torch"], capture_output=True, check=False).returncode:
        (pin,) = (line for line in _lines(CI / "requirements.txt") if line.startswith("torch=="))
        with stage("CUDA's libraries for torch (gigabytes; a CPU build of torch needs none)"):
            must(run([PYTHON, *_PIP, "install", pin], "pip-torch"))
            must(run([PYTHON, "-c", "import torch"], "import-torch"))


def _make(what: str, preset: str, log: str, *how: str | Path) -> None:
    """Builds the package in the build folder of a preset and with its flags, to install it or to
    make a wheel of it. So the package and the C++ tests are linked from the same objects, which are
    compiled once."""
    presets = json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]
    of = {each["name"]: each.get("cacheVariables", {}) for each in presets}
    settings = {"build-dir": f"build/{preset}", "build.targets": "_core;ringcoll"}
    for name, value in {**of["base"], **of[preset]}.items():
        is_type = name == "CMAKE_BUILD_TYPE"
        settings["cmake.build-type" if is_type else f"cmake.define.{name}"] = value
    command = [PYTHON, *_PIP, what, "--no-build-isolation", "--no-deps", *how]
    command += [f"--config-settings={name}={value}" for name, value in settings.items()]
    must(run([*command, ROOT], log, env=tools_env()))


def ringcoll() -> None:
    """Builds and installs the package, unless it is already installed from the same sources."""
    files = _sources("csrc", "ringcoll", "compat")
    files += [ROOT / "pyproject.toml", ROOT / "CMakeLists.txt"]
    key = _hash(files, (_STAMPS / "packages").read_text())
    if _stamped("ringcoll", key):
        return
    with stage("ringcoll: pip install ."):
        _make("install", "dev", "pip-ringcoll", "--force-reinstall")
    _stamp("ringcoll", key)


def sanitized(folder: Path) -> None:
    """Builds the package under the preset asan into a folder for PYTHONPATH."""
    with stage("ringcoll under the preset asan: pip install --target ."):
        shutil.rmtree(folder, ignore_errors=True)
        _make("install", "asan", "pip-ringcoll-asan", "--target", folder)


def python_for_cmake() -> list[str]:
    """Returns CMake options that add the extension for .venv."""
    asked: list[str | Path] = [PYTHON, "-m", "pybind11", "--cmakedir"]
    pybind11 = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    return [
        "-DRINGCOLL_PYTHON=ON",
        f"-DPython_EXECUTABLE={PYTHON}",
        f"-Dpybind11_DIR={pybind11}",
    ]


def _horovod_key() -> str:
    files = _sources("compat", "ringcoll/horovod", "csrc/include")
    return _hash(files, (_STAMPS / "packages").read_text())


@functools.cache
def _horovod_build() -> Future[None]:
    """Starts the build, at low priority."""

    def build() -> None:
        program = VENV / "bin" / "ringcoll"
        command = in_background([program, "horovod", "install"])
        must(run(command, "horovod-install", env=tools_env(), limit_s=_HOROVOD_LIMIT_S))

    return ThreadPoolExecutor(1).submit(build)


def begin_horovod() -> Future[None] | None:
    """Starts to build Horovod in the background, unless it is installed. Precondition: ringcoll()
    was called."""
    return None if _stamped("horovod", _horovod_key()) else _horovod_build()


def horovod() -> None:
    """Builds Horovod with the backend for the frameworks in .venv, and installs it."""
    key = _horovod_key()
    if _stamped("horovod", key):
        return
    with stage("Horovod with the RINGCOLL backend (minutes, the first time)"):
        _horovod_build().result()
    _stamp("horovod", key)


def _more_packages(name: str) -> None:
    """Adds the packages that ci/requirements-<name>.txt pins to .venv."""
    pins = CI / f"requirements-{name}.txt"
    key = _hash([pins], (_STAMPS / "packages").read_text())
    if _stamped(name, key):
        return
    with stage(f"packages of ci/{pins.name}"):
        must(run([PYTHON, *_PIP, "install", "--no-deps", "-r", pins], f"pip-{name}"))
    _stamp(name, key)


def engines() -> None:
    """Installs what tests/engines starts jobs with: Debian packages, and more packages in .venv."""
    packages("apt-packages-engines.txt")
    _more_packages("engines")


def mxnet() -> None:
    """Makes the environment of tests/mxnet: MXNet with the packages of its time, and the package
    that is in .venv. Precondition: ringcoll() was called."""
    pins = CI / "requirements-mxnet.txt"
    python = MXNET / "bin" / "python"
    key = _hash([pins], (_STAMPS / "ringcoll").read_text())
    if _stamped("mxnet", key):
        return
    with stage(f"virtual environment .venv/mxnet with ci/{pins.name}"):
        must(run([base_python(), "-m", "venv", "--clear", MXNET], "venv-mxnet"))
        must(run([python, *_PIP, "install", "--no-deps", "-r", pins], "pip-mxnet"))
    with stage("ringcoll: a wheel for .venv/mxnet"):
        wheels = ROOT / "build" / "wheel-mxnet"
        shutil.rmtree(wheels, ignore_errors=True)
        _make("wheel", "dev", "pip-ringcoll-wheel", "--wheel-dir", wheels)
        (wheel,) = wheels.glob("ringcoll-*.whl")
        # --no-deps: all packages are listed.
        must(run([python, *_PIP, "install", "--no-deps", wheel], "pip-ringcoll-mxnet"))
    _stamp("mxnet", key)


def mutator() -> None:
    """Installs universalmutator, which rewrites lines for ci/mutate."""
    _more_packages("mutate")


def tools_env() -> dict[str, str]:
    """Returns variables for programs in .venv: its bin/ leads PATH, and root may use mpirun."""
    variables = {
        "PATH": f"{VENV / 'bin'}:{os.environ.get('PATH', '')}",
        "VIRTUAL_ENV": str(VENV),
        "MAKEFLAGS": os.environ.get("MAKEFLAGS", f"-j{os.cpu_count() or 1}"),
        "PYTHONUNBUFFERED": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    if os.geteuid() == 0:
        variables |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    # Tests often run more ranks than cores, which Open MPI refuses by default.
    variables["OMPI_MCA_rmaps_base_oversubscribe"] = "1"
    return variables


def prepare(level: Level = Level.HOROVOD) -> None:
    """Sets up everything up to `level`; a second call does nothing."""
    if sys.platform != "linux":
        raise StageFailed("ringcoll is built and tested on Linux")
    packages()
    environment()
    if level >= Level.RINGCOLL:
        ringcoll()
    if level >= Level.HOROVOD:
        horovod()
