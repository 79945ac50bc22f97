"""Debians of their own, in folders of the cache: debootstrap makes them once, chroot enters them.

What is built or tried in one of them finds nothing of this machine but its kernel and what it is
shown.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from support import setup
from support.stages import Outcome, StageFailed, cache_folder, must, run, stage

_SCRIPTS = Path("/usr/share/debootstrap/scripts")
_ENVIRONMENT = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "DEBIAN_FRONTEND": "noninteractive",
}
_LIMIT_S = 3600


@dataclass(frozen=True)
class Recipe:
    """What a root is made of. `packages` may name another architecture ("libc6-dev:arm64"), which
    is then `foreign`; `then` are commands of bash that end the making, run inside."""

    name: str
    suite: str
    packages: tuple[str, ...] = ()
    foreign: str = ""
    then: str = ""

    @property
    def key(self) -> str:
        """Changes with the recipe: a root of another one is not taken for this one's."""
        parts = (self.suite, *self.packages, self.foreign, self.then)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:10]


@dataclass(frozen=True)
class Root:
    """A root that is made."""

    folder: Path

    def run(
        self,
        command: Sequence[str | PurePosixPath],
        log: str,
        *,
        shown: Mapping[Path, str] | None = None,
        env: Mapping[str, str] | None = None,
        limit_s: float = _LIMIT_S,
    ) -> Outcome:
        """Runs a command inside, in namespaces of processes and mounts that end with it.

        `shown` are folders of this machine, each with its place inside.
        """
        script = [
            f"mkdir -p {_quoted(self.folder, place)} && "
            f"mount --bind {shlex.quote(str(outside))} {_quoted(self.folder, place)} && "
            for outside, place in (shown or {}).items()
        ]
        variables = [f"{name}={value}" for name, value in {**_ENVIRONMENT, **(env or {})}.items()]
        inner = ["chroot", str(self.folder), "/usr/bin/env", "-i", *variables, *map(str, command)]
        enter = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
        enter += [f"--mount-proc={self.folder / 'proc'}", "sh", "-c"]
        return run([*enter, "".join(script) + "exec " + shlex.join(inner)], log, limit_s=limit_s)

    def path(self, place: str) -> Path:
        """Where a place inside is on this machine."""
        return self.folder / place.lstrip("/")


def _quoted(folder: Path, place: str) -> str:
    return shlex.quote(str(folder / place.lstrip("/")))


def mirror() -> str:
    """The archive of Debian that this machine's apt uses."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)"]
    command += ["Created-By: Packages", "Origin: Debian", "Label: Debian"]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    if not found:
        raise StageFailed(
            "apt knows no archive of Debian to make a root from: add one to its sources and run "
            "apt-get update"
        )
    return found[0]


def _need_root_user() -> None:
    if os.geteuid() != 0:
        raise StageFailed(
            "a root is made by debootstrap and entered by chroot, which only root may: start this "
            "with sudo"
        )


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """One maker at a time; a second one waits, and then finds what was made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def root(recipe: Recipe) -> Root:
    """The root of a recipe, from the cache or made now. Raises StageFailed."""
    _need_root_user()
    setup.packages("apt-packages-wheel.txt")
    cache = cache_folder("roots")
    made = Root(cache / f"{recipe.name}-{recipe.key}")
    with alone(cache / f"{recipe.name}.lock"):
        if not made.folder.exists():
            with stage(f"a root with {recipe.suite} for {recipe.name} (once)"):
                part = Root(made.folder.with_suffix(".part"))
                shutil.rmtree(part.folder, ignore_errors=True)
                _make(recipe, part)
                part.folder.rename(made.folder)  # what has its name is whole
    return made


def _make(recipe: Recipe, new: Root) -> None:
    archive, log = mirror(), f"root-{recipe.name}"
    command = ["debootstrap", "--variant=minbase", recipe.suite, str(new.folder), archive]
    if not (_SCRIPTS / recipe.suite).exists():  # a suite that is younger than debootstrap
        command.append(str(_SCRIPTS / "sid"))
    must(run(command, f"{log}-debootstrap"))
    new.path("etc/apt/sources.list").write_text(
        "".join(f"{kind} {archive} {recipe.suite} main\n" for kind in ("deb", "deb-src"))
    )
    # Mirrors lag behind, and what is not released yet says how long it holds; signatures count.
    new.path("etc/apt/apt.conf.d/lagging").write_text('Acquire::Check-Valid-Until "false";\n')
    lines = ["set -eux"]
    if recipe.foreign:
        lines.append(f"dpkg --add-architecture {recipe.foreign}")
    lines.append("apt-get update")
    if recipe.packages:
        lines.append("apt-get install -y --no-install-recommends " + " ".join(recipe.packages))
    lines += ["apt-get clean", recipe.then]
    must(new.run(["bash", "-c", "\n".join(lines)], log, env={"archive": archive}))
