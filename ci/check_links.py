#!/usr/bin/env python3
"""Checks what the library and the extension ask of a system when they are linked as for a wheel.

Both are linked again with the commands that CMake writes for RINGCOLL_PORTABLE. The inputs are the
objects of the preset dev and the archives that a wheel contains (ci/support/linked.py). Their
dynamic symbols then show their needs. They may need nothing newer of the C library than a wheel
promises, and no library that a system may lack. --prefix names another folder of archives; without
archives in it, Debian's are linked.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

from support import linked, setup, stages, wheels
from support.stages import ROOT, must, run, say

DEV = ROOT / "build" / "dev"
FOLDER = ROOT / "build" / "links"
# Libraries that every system has (PEP 600).
_EVERYWHERE = re.compile(r"lib(c|m|dl|rt|pthread|gcc_s)\.so\.\d|ld-linux-[\w-]+\.so\.\d")
_VERSION = re.compile(r"\(?GLIBC_2\.(\d+)[\d.]*\)?\s+(\S+)$", re.MULTILINE)


def newer(symbols: str, glibc: int) -> list[str]:
    """Returns symbols of `objdump -T` that need a C library newer than 2.`glibc`."""
    undefined = "\n".join(line for line in symbols.splitlines() if "*UND*" in line)
    found = [(int(minor), name) for minor, name in _VERSION.findall(undefined)]
    return [f"{name}, of glibc 2.{minor}" for minor, name in found if minor > glibc]


def elsewhere(headers: str, own: set[str]) -> list[str]:
    """Returns libraries that `objdump -p` lists as needed and that systems may lack."""
    needed = re.findall(r"^\s*NEEDED\s+(\S+)$", headers, re.MULTILINE)
    return [name for name in needed if name not in own and not _EVERYWHERE.fullmatch(name)]


def asked(path: Path, own: set[str], glibc: int = wheels.GLIBC) -> list[str]:
    """Returns what a shared object needs and a wheel may not; `own` are libraries of the wheel."""

    def objdump(what: str) -> str:
        command = ["objdump", what, str(path)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    return [*newer(objdump("-T"), glibc), *elsewhere(objdump("-p"), own)]


def _link_commands(prefix: Path | None) -> dict[str, str]:
    """Configures as for a wheel. Returns the link command of each shared object."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    configure = ["cmake", "-S", ROOT, "-B", FOLDER, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release"]
    configure += ["-DRINGCOLL_PORTABLE=ON", *setup.python_for_cmake()]
    if prefix:
        configure.append(f"-DCMAKE_PREFIX_PATH={prefix}")
    must(run(configure, "links-configure", env=setup.tools_env()))
    commands = {}
    for target in ("ringcoll", "_core"):
        listing = must(run(["ninja", "-C", FOLDER, "-t", "commands", target], f"links-{target}"))
        last = listing.log.read_text().strip().splitlines()[-1]
        (name,) = re.findall(r" -o (\S+\.so) ", last)
        commands[name] = last
    return commands


def _share_objects() -> None:
    """Links the objects of the preset dev into the folder; both builds compile them alike."""
    rules = DEV / "build.ninja"
    if not rules.exists() or "_core" not in rules.read_text():
        configure = ["cmake", "--preset", "dev", *setup.python_for_cmake()]
        must(run(configure, "links-configure-dev", env=setup.tools_env()))
    build = ["cmake", "--build", DEV, "-j", str(os.cpu_count() or 1)]
    must(run([*build, "--target", "ringcoll", "_core"], "links-build", env=setup.tools_env()))
    objects = FOLDER / "CMakeFiles"
    for path in (DEV / "CMakeFiles").glob("*.dir"):
        shutil.rmtree(objects / path.name, ignore_errors=True)
        (objects / path.name).symlink_to(path)


def main() -> int:
    parser = argparse.ArgumentParser(prog="ci/check_links.py", description=__doc__.splitlines()[0])
    parser.add_argument("--prefix", type=Path, metavar="DIR", help="archives in DIR/lib come first")
    prefix = parser.parse_args().prefix or linked.archives(f"{platform.machine()}-linux-gnu")
    commands = _link_commands(prefix)
    _share_objects()
    found = []
    for name, command in commands.items():
        must(run(["sh", "-c", command], f"links-{name}", cwd=FOLDER))
        found += [f"{name}: {what}" for what in asked(FOLDER / name, set(commands))]
    for line in found:
        say(line)
    if found:
        say(
            f"links: a wheel may ask for glibc 2.{wheels.GLIBC} and no other library. The command "
            "in build/log/links-FILE.log with -Wl,--trace-symbol=SYMBOL names what draws one in"
        )
        return 1
    say(f"links: a wheel asks for no more than glibc 2.{wheels.GLIBC}")
    return 0


if __name__ == "__main__":
    stages.main(main)
