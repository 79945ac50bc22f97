"""Builds Horovod with ringcoll's sources in a folder that is kept, for ci/mutate. Runs in .venv.

    glue.py FOLDER JOBS

The first run builds all of Horovod. Later runs build what depends on changed sources of the
ringcoll that Python finds. FOLDER/site then has the package as it would be installed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

from ringcoll.horovod import builder
from ringcoll.horovod.edits import EDITS
from ringcoll.horovod.machine import Machine


def _run(*command: str | Path, env: dict[str, str] | None = None) -> None:
    subprocess.run([str(word) for word in command], env=env, check=True)


def _key(machine: Machine) -> str:
    """A hash of all inputs but ringcoll's own sources."""
    edits = [dataclasses.astuple(edit) for edit in EDITS]
    parts = [builder.SDIST_SHA256, edits, dataclasses.asdict(machine)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _build_all(folder: Path, machine: Machine, env: dict[str, str]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    sdist = builder.fetch_sdist(builder.cache_dir() / "source")
    tree = builder.prepare_tree(sdist, folder, "mutate")
    tree.rename(folder / "tree")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    how = ("--no-deps", "--no-build-isolation", "--no-cache-dir")
    _run(*pip, "wheel", "-v", *how, "-w", folder, folder / "tree", env=env)
    (wheel,) = folder.glob("horovod-*.whl")
    _run(*pip, "install", "--no-deps", "--target", folder / "site", wheel)
    (folder / "key").write_text(_key(machine))


def _build_changed(folder: Path, env: dict[str, str], jobs: str) -> None:
    builder.lay_glue(folder / "tree")
    (built,) = (folder / "tree").glob("build/temp.*/*/CMakeCache.txt")
    _run("cmake", "--build", built.parent, "-j", jobs, env=env)
    (libraries,) = (folder / "tree").glob("build/lib.*")
    for source in libraries.rglob("*.so"):
        shutil.copy2(source, folder / "site" / source.relative_to(libraries))
    for source in (folder / "tree" / "horovod" / "common").glob("ringcoll_*.py"):
        shutil.copy2(source, folder / "site" / "horovod" / "common")


def main() -> None:
    folder, jobs = Path(sys.argv[1]), sys.argv[2]
    machine = Machine.probe()
    env = machine.environment(int(jobs), builder.local_version(machine))
    key = folder / "key"
    if not key.exists() or key.read_text() != _key(machine):
        _build_all(folder, machine, env)
    _build_changed(folder, env, jobs)


if __name__ == "__main__":
    main()
