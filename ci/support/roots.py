"""Root folders with Debian in the cache: debootstrap makes them once, chroot enters them.

Builds and tests inside see nothing of this machine but its kernel and the folders that are mounted
for them.
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
    """How to make a root. `packages` may name the `foreign` architecture ("libc6-dev:arm64").
    `then` has bash commands that run inside at the end."""

    name: str
    suite: str
    packages: tuple[str, ...] = ()
    foreign: str = ""
    then: str = ""

    @property
    def key(self) -> str:
        """Changes with the recipe, so that a root of an older recipe is not used."""
        parts = (self.suite, *self.packages, self.foreign, self.then)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:10]


@dataclass(frozen=True)
class Root:
    """A complete root."""

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
        """Runs a command inside, in process and mount namespaces that end with it.

        `shown` maps folders of this machine to their places inside.
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
        """Converts a path inside the root to one of this machine."""
        return self.folder / place.lstrip("/")


def _quoted(folder: Path, place: str) -> str:
    return shlex.quote(str(folder / place.lstrip("/")))


def mirror() -> str:
    """Returns the Debian archive that this machine's apt uses."""
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
    """Admits one maker at a time. The next one waits, and then finds the result."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def root(recipe: Recipe) -> Root:
    """Returns the root of a recipe, from the cache or newly made. Raises StageFailed."""
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
                part.folder.rename(made.folder)  # a folder with its final name is complete
    return made


def _make(recipe: Recipe, new: Root) -> None:
    archive, log = mirror(), f"root-{recipe.name}"
    command = ["debootstrap", "--variant=minbase", recipe.suite, str(new.folder), archive]
    if not (_SCRIPTS / recipe.suite).exists():  # the suite is newer than this debootstrap
        command.append(str(_SCRIPTS / "sid"))
    must(run(command, f"{log}-debootstrap"))
    new.path("etc/apt/sources.list").write_text(
        "".join(f"{kind} {archive} {recipe.suite} main\n" for kind in ("deb", "deb-src"))
    )
    # Mirrors lag behind, and lists of unreleased suites expire; signatures are still checked.
    new.path("etc/apt/apt.conf.d/lagging").write_text('Acquire::Check-Valid-Until "false";\n')
    lines = ["set -eux"]
    if recipe.foreign:
        lines.append(f"dpkg --add-architecture {recipe.foreign}")
    lines.append("apt-get update")
    if recipe.packages:
        lines.append("apt-get install -y --no-install-recommends " + " ".join(recipe.packages))
    lines += ["apt-get clean", recipe.then]
    must(new.run(["bash", "-c", "\n".join(lines)], log, env={"archive": archive}))
