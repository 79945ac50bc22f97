"""Builds the wheel of Horovod with the backend RINGCOLL, once for each set of inputs."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..files import replace_file
from . import anchored
from .edits import EDITS
from .installed import find_installed
from .machine import Machine
from .portable import NotPortable, check_environment, examine
from .report import Report, make_report

HOROVOD_VERSION = "0.28.1"
SDIST_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
# Increased whenever edits or glue change what a user of the wheel sees.
GLUE_REVISION = 7

_SDIST = f"horovod-{HOROVOD_VERSION}.tar.gz"
_PACKAGE = Path(__file__).resolve().parent
# Folders in Horovod's tree for ringcoll's sources, by suffix.
_PLACES = {
    ".h": "horovod/common/ringcoll",
    ".cc": "horovod/common/ringcoll",
    ".py": "horovod/common",
}


class BuildError(RuntimeError):
    """The wheel could not be built. The message has the reason, and the path of the log."""


@dataclass(frozen=True)
class Options:
    jobs: int = 0  # compilers at a time; 0: one for each CPU
    torch: bool = True
    tensorflow: bool = True
    mpi: bool = True
    force: bool = False  # build even if the wheel is in the cache
    everywhere: bool = False  # build for the processors of other machines too


def glue_dir() -> Path:
    """The folder of ringcoll's sources for Horovod, in the installed package or in a checkout."""
    for folder in (_PACKAGE / "glue", _PACKAGE.parents[1] / "compat" / "horovod"):
        if (folder / "ringcoll_context.cc").is_file():
            return folder
    raise BuildError("this installation of ringcoll lacks its sources for Horovod; reinstall it")


def _header() -> Path:
    for folder in (_PACKAGE.parent / "include", _PACKAGE.parents[1] / "csrc" / "include"):
        if (folder / "ringcoll" / "ringcoll.h").is_file():
            return folder / "ringcoll" / "ringcoll.h"
    raise BuildError("this installation of ringcoll lacks its header ringcoll.h; reinstall it")


def glue_files() -> list[Path]:
    """All files that are copied into Horovod's tree."""
    files = [f for f in sorted(glue_dir().iterdir()) if f.suffix in _PLACES]
    return [*files, _header()]


def cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "ringcoll" / "horovod"


def local_version(machine: Machine) -> str:
    """The part after "+" in the version of the wheel: the revision of the glue, and the frameworks,
    since the wheel does not load with others."""
    parts = [f"ringcoll.{GLUE_REVISION}"]
    for name, version in (("torch", machine.torch), ("tensorflow", machine.tensorflow)):
        if version:
            plain = re.sub(r"[^a-z0-9.]+", ".", version.lower().partition("+")[0])
            parts.append(f"{name}{plain}")
    return ".".join(parts)


def build_key(machine: Machine) -> str:
    """A hash of all inputs of the wheel."""
    parts = {
        "sdist": SDIST_SHA256,
        "version": local_version(machine),
        "edits": [dataclasses.astuple(edit) for edit in EDITS],
        "glue": {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in glue_files()},
        "machine": dataclasses.asdict(machine),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:20]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds the lock of a build key. A second build of the same key waits, and then finds the
    wheel."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def fetch_sdist(folder: Path) -> Path:
    """Fetches Horovod's source by pip, unless it is in `folder`, and checks its hash. Raises
    BuildError."""
    sdist = folder / _SDIST
    if sdist.is_file() and hashlib.sha256(sdist.read_bytes()).hexdigest() == SDIST_SHA256:
        return sdist
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ringcoll-fetch-") as scratch:
        wanted = Path(scratch) / "horovod.txt"
        wanted.write_text(f"horovod=={HOROVOD_VERSION} --hash=sha256:{SDIST_SHA256}\n")
        command = [sys.executable, "-m", "pip", "download", "--no-binary", ":all:", "--no-deps"]
        command += ["--no-build-isolation", "--require-hashes", "-r", str(wanted), "-d", scratch]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
        )
        fetched = Path(scratch) / _SDIST
        if done.returncode != 0 or not fetched.is_file():
            last = "\n".join((done.stdout + done.stderr).strip().splitlines()[-8:])
            raise BuildError(f"pip could not fetch horovod {HOROVOD_VERSION}:\n{last}")
        shutil.copyfile(fetched, sdist)
    return sdist


def lay_glue(tree: Path) -> None:
    """Copies ringcoll's sources into Horovod's tree. An identical file keeps its time stamp."""
    for file in glue_files():
        target = tree / _PLACES[file.suffix] / file.name
        if not target.exists() or target.read_bytes() != file.read_bytes():
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(file, target)


def prepare_tree(sdist: Path, folder: Path, key: str) -> Path:
    """Unpacks Horovod and adds the backend. Raises EditError if an edit does not fit."""
    with tarfile.open(sdist) as archive:
        # Python 3.11.2 (Debian 12) has no filters. That is safe, since the archive's hash is
        # pinned.
        if hasattr(tarfile, "data_filter"):
            archive.extractall(folder, filter="data")
        else:
            archive.extractall(folder)
    tree = folder / f"horovod-{HOROVOD_VERSION}"
    anchored.apply(tree, EDITS)
    lay_glue(tree)
    (tree / "horovod" / "common" / "ringcoll_build.py").write_text(
        f'"""Which build of `ringcoll horovod` this is."""\n\nKEY = "{key}"\n'
    )
    return tree


def _causes(log: Path) -> str:
    """The lines of a log that have the cause: the first errors, or else the last lines."""
    errors: list[str] = []
    last: deque[str] = deque(maxlen=15)
    with open(log, encoding="utf-8", errors="replace") as file:
        for line in file:
            last.append(line.rstrip())
            if re.search(r"\berror:|CMake Error|fatal error", line) and len(errors) < 10:
                errors.append(line.rstrip())
    return "\n".join(errors or last)


def _build_wheel(tree: Path, out: Path, log: Path, env: dict[str, str], report: Report) -> Path:
    command = [sys.executable, "-m", "pip", "wheel", "--verbose", "--no-deps"]
    command += ["--no-build-isolation", "--no-cache-dir", "--wheel-dir", str(out), str(tree)]
    with open(log, "w", encoding="utf-8") as file:
        file.write(f"{' '.join(command)}\n")
        with subprocess.Popen(
            command,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                file.write(line)
                done = re.match(r"\s*\[\s*(\d+)%\]", line)
                if done:
                    report.percent(int(done.group(1)))
    wheels = list(out.glob("horovod-*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        raise BuildError(f"the build of Horovod failed:\n{_causes(log)}\nThe whole log: {log}")
    return wheels[0]


def _frameworks(machine: Machine) -> str:
    found = [("torch", machine.torch), ("tensorflow", machine.tensorflow), ("", machine.mpi)]
    return ", ".join(f"{name} {version}".strip() for name, version in found if version)


def _probe(options: Options) -> Machine:
    return Machine.probe(
        torch=options.torch,
        tensorflow=options.tensorflow,
        mpi=options.mpi,
        everywhere=options.everywhere,
    )


def build(options: Options = Options(), report: Report | None = None) -> Path:
    """Returns the wheel, from the cache or newly built. Raises BuildError or EditError."""
    machine = _probe(options)
    lacks = machine.missing()
    if lacks:
        raise BuildError("to build Horovod this machine lacks\n  " + "\n  ".join(lacks))
    key, version = build_key(machine), local_version(machine)
    folder = cache_dir() / key
    with report or make_report() as told, _locked(cache_dir() / f"{key}.lock"):
        wheels = sorted(folder.glob("horovod-*.whl"))
        if wheels and not options.force:
            told.stage(f"Horovod {HOROVOD_VERSION}+{version} is built already: {wheels[0]}")
            return wheels[0]
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="ringcoll-horovod-") as scratch:
            told.stage(f"Fetching the source of Horovod {HOROVOD_VERSION}")
            sdist = fetch_sdist(cache_dir() / "source")
            told.stage("Adding the backend RINGCOLL")
            tree = prepare_tree(sdist, Path(scratch), key)
            log = folder / "build.log"
            told.stage(f"Compiling for {_frameworks(machine)} (log: {log})")
            environment = machine.environment(options.jobs or os.cpu_count() or 1, version)
            built = _build_wheel(tree, Path(scratch) / "wheel", log, environment, told)
            wheel = folder / built.name
            # The scratch folder may be on another file system: copies first, then renames in one
            # step.
            shutil.copyfile(built, wheel.with_suffix(".part"))
            wheel.with_suffix(".part").replace(wheel)
            told.stage(f"Built {wheel}")
    return wheel


def install(options: Options = Options(), report: Report | None = None) -> Path:
    """Builds the wheel if needed, installs it for this Python, and returns it. Raises BuildError or
    EditError."""
    told = report or make_report()
    wheel = build(options, told)
    present = find_installed()
    if present and present.build_key == wheel.parent.name and not options.force:
        return wheel
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--no-deps", "--force-reinstall", str(wheel)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise BuildError(f"pip could not install {wheel}:\n{done.stdout}{done.stderr}")
    return wheel


def export(options: Options, output: Path, report: Report | None = None) -> tuple[Path, list[str]]:
    """Builds a wheel for other machines, if needed, and copies it into `output`. Returns the copy,
    and lines of text about what those machines must have. Raises EditError, or BuildError, also if
    the build depends on this machine's processor."""
    options = dataclasses.replace(options, everywhere=True)
    machine = _probe(options)
    try:
        check_environment(os.environ)
        output.mkdir(parents=True, exist_ok=True)
        wheel = build(options, report)
        needs = examine(wheel, wheel.parent / "build.log")
        copy = output / wheel.name
        replace_file(copy, wheel.read_bytes())
    except NotPortable as error:
        raise BuildError(f"this wheel would not run on every machine: {error}") from None
    except OSError as error:
        raise BuildError(f"--output {output}: {error.strerror or error}") from None
    frameworks = [machine.torch and f"torch {machine.torch}"]
    frameworks.append(machine.tensorflow and f"tensorflow {machine.tensorflow}")
    python = ".".join(machine.python.split(".")[:2])
    return copy, needs.lines(", ".join(filter(None, frameworks)), python)
