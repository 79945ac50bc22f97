"""Finds out what a wheel of Horovod needs on other machines than the one that built it.

A wheel for other machines must not depend on this machine's processor. The user also needs to know
its other requirements. Both are found in the result of the build: in the compiler's commands and in
the built files.
"""

from __future__ import annotations

import platform
import re
import subprocess
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

# The features of x86-64 that Horovod uses, to convert and add float16. Every server processor since
# 2013 has them.
ARCH_FLAGS = {"x86_64": ("-mf16c", "-mavx", "-mfma")}
_CPU_NAMES = {"-mf16c": "F16C", "-mavx": "AVX", "-mfma": "FMA"}
# -mtune=native is harmless: it only affects optimization, not the instruction set.
_NATIVE = re.compile(r"(?<=\s)-m(?:arch|cpu)=native(?=\s|$)")
_COMPILER_VARIABLES = ("CFLAGS", "CXXFLAGS", "CPPFLAGS", "HOROVOD_BUILD_ARCH_FLAGS")
_OF_EVERY_LINUX = re.compile(
    r"(ld-linux|linux-vdso|lib(c|m|dl|rt|pthread|util|gcc_s|stdc\+\+)\.so)"
)
_OF_FRAMEWORKS = re.compile(r"lib(torch|c10|tensorflow)")


class NotPortable(RuntimeError):
    """The build may not run on other machines. The message has the reason and the remedy."""


def arch_flags(*, everywhere: bool) -> str:
    """The flags of ARCH_FLAGS to compile with: those that this machine supports, or all of them if
    the build is for other machines (`everywhere`)."""
    flags = ARCH_FLAGS.get(platform.machine(), ())
    if everywhere:
        return " ".join(flags)
    has = _cpu_features()
    return " ".join(flag for flag in flags if flag.removeprefix("-m") in has)


def _cpu_features() -> set[str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return set()
    found = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    return set(found.group(1).split()) if found else set()


def check_environment(variables: Mapping[str, str]) -> None:
    """Raises NotPortable if `variables` make the compiler use this machine's processor. Is called
    before anything is compiled."""
    for name in _COMPILER_VARIABLES:
        if found := _NATIVE.search(f" {variables.get(name, '')} "):
            raise NotPortable(
                f"{name} has {found.group()}, which compiles for this machine's processor alone: "
                "unset it, or name a processor that all machines have at least, such as "
                "-march=x86-64-v3"
            )


@dataclass(frozen=True)
class Needs:
    """The requirements of the wheel on a machine."""

    cpu: tuple[str, ...]  # features beyond the baseline of the architecture
    glibc: str
    libstdcxx: str  # the newest symbol version
    libraries: tuple[str, ...]  # neither of every Linux system nor of the frameworks
    folders: tuple[str, ...]  # where the loader looks for these libraries first

    def lines(self, frameworks: str, python: str) -> list[str]:
        """The requirements as lines of text for the user."""
        cpu = f" with {', '.join(self.cpu)}" if self.cpu else ""
        lines = [
            f"processor: {platform.machine()}{cpu}",
            f"CPython {python}, glibc {self.glibc} or later, libstdc++ with {self.libstdcxx}",
            f"frameworks: {frameworks} (the same minor versions, since their ABIs are not stable)",
        ]
        if self.libraries:
            where = f", looked for in {', '.join(self.folders)} first" if self.folders else ""
            lines.append(
                f"libraries: {', '.join(self.libraries)}{where}; without them it does not load "
                "(build with --without-mpi to do without MPI)"
            )
        return lines


def examine(wheel: Path, log: Path) -> Needs:
    """The requirements of a wheel, from its files and the log of its build. Raises NotPortable."""
    commands = _compilers_lines(log)
    native = next((line for line in commands if _NATIVE.search(line)), None)
    if native is not None:
        raise NotPortable(
            f"it was compiled for this machine's processor only: {native[:200]} … (the whole log: "
            f"{log})"
        )
    flags = {flag for line in commands for flag in re.findall(r"(?<=\s)-m[\w.+=-]+", line)}
    facts = [_dump(text) for text in _shared_objects(wheel)]
    libraries = {name for fact in facts for name in fact.needed}
    foreign = (
        name
        for name in sorted(libraries)
        if not _OF_EVERY_LINUX.match(name) and not _OF_FRAMEWORKS.match(name)
    )
    return Needs(
        cpu=tuple(_CPU_NAMES.get(flag, flag) for flag in sorted(flags)),
        glibc=_newest("GLIBC", facts),
        libstdcxx="GLIBCXX_" + _newest("GLIBCXX", facts),
        libraries=tuple(foreign),
        folders=tuple(sorted({place for fact in facts for place in fact.places})),
    )


def _compilers_lines(log: Path) -> list[str]:
    with open(log, encoding="utf-8", errors="replace") as file:
        return [line.strip() for line in file if re.search(r"\S*(\+\+|cc)\s.*-o\s+\S+\.o\b", line)]


@dataclass(frozen=True)
class _Facts:
    needed: tuple[str, ...]
    places: tuple[str, ...]
    versions: tuple[str, ...]


def _shared_objects(wheel: Path) -> Iterable[str]:
    """The output of objdump for each shared object of the wheel."""
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".so"):
                file = archive.extract(name, folder)
                command = ["objdump", "-p", file]
                yield subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _dump(text: str) -> _Facts:
    runpath = re.findall(r"^\s*(?:RUNPATH|RPATH)\s+(\S+)$", text, re.MULTILINE)
    return _Facts(
        needed=tuple(re.findall(r"^\s*NEEDED\s+(\S+)$", text, re.MULTILINE)),
        places=tuple(place for path in runpath for place in path.split(":")),
        versions=tuple(re.findall(r"\b(GLIBC(?:XX)?_[0-9.]+)", text)),
    )


def _newest(prefix: str, facts: Iterable[_Facts]) -> str:
    found = {
        version.removeprefix(f"{prefix}_")
        for fact in facts
        for version in fact.versions
        if version.startswith(f"{prefix}_")
    }
    return max(found, key=lambda version: [int(part) for part in version.split(".")], default="0")
