"""The inputs of a build of Horovod that are not in its source: frameworks, compilers, MPI."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass, field

from .portable import arch_flags

_TENSORFLOW = ("tensorflow", "tensorflow-cpu", "tensorflow-intel", "tensorflow-rocm", "tf-nightly")
# Packages that setup.py needs, since pip fetches none for this build: import name → package.
_PACKAGES = {
    "cloudpickle": "cloudpickle",
    "psutil": "psutil",
    "yaml": "pyyaml",
    "packaging": "packaging",
    "cffi": "cffi",
    "setuptools": "setuptools",
    "wheel": "wheel",
}
# Variables of a running job. In a build they have no meaning or another one.
_OF_JOBS = ("HOROVOD_CPU_OPERATIONS", "HOROVOD_CONTROLLER", "HOROVOD_TIMELINE", "HOROVOD_LOG_LEVEL")


def _version_of(*names: str) -> str:
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def _first_line(*command: str) -> str:
    """The first line of a program's output; "" if the program is not installed."""
    if shutil.which(command[0]) is None:
        return ""
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return (done.stdout or done.stderr).strip().partition("\n")[0]


@dataclass(frozen=True)
class Machine:
    torch: str
    tensorflow: str
    compiler: str
    cmake: str
    mpi: str
    python: str = platform.python_version()
    platform: str = f"{platform.system()} {platform.machine()} {' '.join(platform.libc_ver())}"
    settings: dict[str, str] = field(default_factory=dict)  # HOROVOD_* of the environment
    arch_flags: str = ""  # which processor features the compiler may use

    @staticmethod
    def probe(
        *, torch: bool = True, tensorflow: bool = True, mpi: bool = True, everywhere: bool = False
    ) -> Machine:
        """Examines this machine. The build leaves out whatever is False. With `everywhere`, the
        build must run on other machines too."""
        settings = {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith("HOROVOD_") and name not in _OF_JOBS
        }
        has_mpi = mpi and _first_line("mpicxx", "-show") != ""
        return Machine(
            torch=_version_of("torch") if torch else "",
            tensorflow=_version_of(*_TENSORFLOW) if tensorflow else "",
            compiler=_first_line(os.environ.get("CXX", "g++"), "--version"),
            cmake=_first_line(os.environ.get("HOROVOD_CMAKE", "cmake"), "--version"),
            mpi=_first_line("mpirun", "--version") if has_mpi else "",
            settings=settings,
            arch_flags=settings.get("HOROVOD_BUILD_ARCH_FLAGS", arch_flags(everywhere=everywhere)),
        )

    def missing(self) -> list[str]:
        """What must be installed before the build, each with the command that installs it."""
        lacks = []
        if not self.compiler:
            lacks.append("a C++ compiler: apt-get install g++ (or set CXX)")
        if not self.cmake:
            lacks.append("cmake: apt-get install cmake, or pip install cmake")
        if shutil.which("make") is None:
            lacks.append("make: apt-get install make")
        if not self.torch and not self.tensorflow:
            lacks.append("a framework: pip install torch, or pip install tensorflow-cpu")
        packages = [p for name, p in _PACKAGES.items() if importlib.util.find_spec(name) is None]
        if packages:
            lacks.append(f"Python packages: {sys.executable} -m pip install {' '.join(packages)}")
        return lacks

    def environment(self, jobs: int, local_version: str) -> dict[str, str]:
        """The environment variables for Horovod's setup.py and CMake."""
        environment = {k: v for k, v in os.environ.items() if k not in _OF_JOBS}
        environment.update(
            HOROVOD_LOCAL_VERSION=local_version,
            HOROVOD_WITHOUT_MXNET="1",
            HOROVOD_WITH_GLOO="1",
            # Without flags, Horovod would ask the compiler for this machine's features.
            HOROVOD_BUILD_ARCH_FLAGS=self.arch_flags or " ",
            # CMake 4 refuses the old minimum versions in Horovod's tree.
            CMAKE_POLICY_VERSION_MINIMUM="3.5",
            MAKEFLAGS=f"-j{jobs}",
        )
        for name, found in (
            ("PYTORCH", self.torch),
            ("TENSORFLOW", self.tensorflow),
            ("MPI", self.mpi),
        ):
            environment[f"HOROVOD_WITH_{name}" if found else f"HOROVOD_WITHOUT_{name}"] = "1"
        return environment
