"""The CPythons that wheels are made for: those of Debian's suites, and others on this machine.

Compiling an extension needs only the headers. Trying it needs the interpreter in a root without a
compiler. That interpreter is the suite's own, or this machine's, mounted into the root of Debian
12.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from support import roots
from support.roots import Recipe, Root
from support.stages import StageFailed, must

# Debian's suites with a CPython of their own: 12, 13, and the next one.
SUITES = ("bookworm", "trixie", "forky")
_OLDEST = (3, 11)
_HEADERS = "/opt/headers"
_OWN = "bookworm"  # programs of this machine are linked with its C library
# The suite's python3, and its headers in a folder where no compiler would find them.
_PYTHON = ("python3", "python3-venv")
_UNPACK = f"""
cd /tmp
apt-get download "$(basename "$(readlink -f /usr/bin/python3)" | sed 's/.*/lib&-dev/')"
dpkg-deb -x libpython3*.deb {_HEADERS}
rm libpython3*.deb
"""
_ASK = (
    "import json, sys, sysconfig; print(json.dumps([sys.version.split()[0], "
    "sys.implementation.name, sysconfig.get_config_var('Py_GIL_DISABLED') or 0, "
    "sysconfig.get_path('include'), sys.base_prefix, sys.abiflags]))"
)


@dataclass(frozen=True)
class Cpython:
    """One minor version: what compiles an extension for it, and where it is tried."""

    version: str  # "3.11"
    headers: Path  # a folder of this machine
    includes: tuple[str, ...]  # paths in `headers`
    bare: Root
    program: str  # path in the root
    shown: Path | None = None  # mounted into the root, at the same path

    @property
    def tag(self) -> str:
        return "cp" + self.version.replace(".", "")


def bare_root(suite: str) -> Root:
    """A root with Python and without compilers."""
    return roots.root(Recipe(f"bare-{suite}", suite, _PYTHON, then=_UNPACK))


def of_suite(suite: str) -> Cpython:
    """The python3 of a suite of Debian."""
    bare = bare_root(suite)
    program = bare.path("/usr/bin/python3").readlink().name
    version = program.removeprefix("python")
    headers = bare.path(f"{_HEADERS}/usr/include")
    if not (headers / program / "Python.h").exists():
        raise StageFailed(f"{headers} has no {program}/Python.h")
    return Cpython(version, headers, ("", program), bare, f"/usr/bin/{program}")


def _programs() -> Iterable[str]:
    """Yields every python3.N of this machine. If a version has several, the first counts."""
    for minor in range(_OLDEST[1], _OLDEST[1] + 20):
        found = shutil.which(f"python3.{minor}")
        if found:
            yield found
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    yield from (str(path) for path in sorted(versions.glob("3.*/bin/python3")))


def of_machine(but: Iterable[str]) -> list[Cpython]:
    """Returns the CPythons of this machine with versions not in `but`."""
    found: dict[str, Cpython] = {}
    for program in _programs():
        asked = subprocess.run([program, "-c", _ASK], capture_output=True, text=True, check=False)
        if asked.returncode != 0:
            continue  # such as a pyenv shim of a version that is not selected
        version, kind, without_gil, include, prefix, _ = json.loads(asked.stdout)
        minor = ".".join(version.split(".")[:2])
        usable = kind == "cpython" and not without_gil and Path(include, "Python.h").exists()
        numbers = tuple(int(part) for part in minor.split("."))
        # A root has its own /usr, so the machine's cannot be mounted there.
        if usable and numbers >= _OLDEST and prefix != "/usr" and minor not in {*but, *found}:
            found[minor] = Cpython(
                minor,
                Path(include),
                ("",),
                bare_root(_OWN),
                f"{prefix}/bin/python{minor}",
                Path(prefix),
            )
    return list(found.values())


def available(wanted: Iterable[str] = ()) -> list[Cpython]:
    """Returns every available CPython, or the wanted ones. Raises StageFailed if a wanted one is
    missing."""
    wanted, found = set(wanted), dict[str, Cpython]()
    for suite in SUITES:  # the last suite changes, so it is used only if needed
        if not wanted or wanted - found.keys():
            python = of_suite(suite)
            found[python.version] = python
    if not wanted or wanted - found.keys():
        found |= {python.version: python for python in of_machine(but=found)}
    lost = sorted(wanted - found.keys())
    if lost:
        raise StageFailed(
            f"there is no CPython {', '.join(lost)} here: Debian's {', '.join(SUITES)} and this "
            f"machine have {', '.join(sorted(found))}"
        )
    return [found[version] for version in sorted(wanted or found, key=_minor)]


def _minor(version: str) -> int:
    return int(version.split(".")[1])


def check_bare(root: Root) -> None:
    """Raises StageFailed if the root has anything to compile with; trying a wheel there would prove
    nothing."""
    script = """
    for program in cc gcc c++ g++ clang clang++ cmake make; do
      if command -v $program; then echo "there is a $program"; exit 1; fi
    done
    if dpkg-query -W -f '${Package}\\n' | grep -E -e '-dev$'; then exit 1; fi
    """
    must(root.run(["sh", "-c", script], f"{root.folder.name}-is-bare"))
