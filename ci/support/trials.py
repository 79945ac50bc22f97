"""Plants errors in a copy of the checkout, and runs the tests of the layer and of those above.

The copy, build/mutate/tree, has the files that git tracks and new files. It keeps what was built.
An error that an interrupted run left in it is removed when the next run begins.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from check_layers import FRONT, ORDER, allowed_layers

from support import sanitizers, setup, stages, suites
from support.mutants import Mutant, difference, is_product, is_weaker, language
from support.report import Report
from support.stages import LOGS, ROOT, VENV, Outcome, StageFailed, must

FOLDER = ROOT / "build" / "mutate"
RECORD = ROOT / "ci" / "mutants-tried.json"
TREE = FOLDER / "tree"
_SITE = FOLDER / "site"  # the package as it would be installed
_HOROVOD = FOLDER / "horovod"
# Results depend on these files: if one changes, they are found again.
_TESTS = ("conftest.py", "python/", "processes/", "cluster/", "horovod/")
_MATTERS: tuple[str, ...] = ("csrc/", "ringcoll/", "compat/", "CMake", "pyproject.toml")
_MATTERS += tuple(f"tests/{name}" for name in _TESTS)
# Limits for each process, so that an error that takes memory or fills files without end harms
# nothing else.
_FILES = ("prlimit", f"--fsize={8 << 30}", "--core=0")
_BOUNDS = {
    "dev": (*_FILES, f"--data={6 << 30}"),
    "tsan": (*_FILES, "setarch", "-R"),  # its shadow counts as data and needs fixed addresses
}
_SUITE_LIMIT_S = 2700
_BUILD_LIMIT_S = 1800  # all builds for one error; everything includes base/
_REPEATS = 3


@dataclass(frozen=True)
class Suite:
    """Tests that run in one process: the program of a layer or, with paths, files of pytest."""

    layer: str
    paths: tuple[str, ...] = ()
    preset: str = "dev"

    @property
    def name(self) -> str:
        return self.layer if self.preset == "dev" else f"{self.preset}-{self.layer}"

    @property
    def targets(self) -> tuple[str, ...]:
        if self == _ORDERS:  # these tests compile their models themselves
            return ()
        return ("_core", "ringcoll") if self.paths else (f"{self.layer}_test",)

    @property
    def folder(self) -> Path:
        return TREE / "build" / self.preset

    @property
    def programs(self) -> list[Path]:
        """The compiler's output for the suite."""
        if not self.paths:
            return [self.folder / f"{self.layer}_test"]
        return sorted([*_SITE.glob("ringcoll/_core*.so"), *_SITE.glob("ringcoll/libringcoll*.so")])


_PYTHON = Suite("python", ("tests/python",))
_PROCESSES = Suite("processes", ("tests/processes",))
_CLUSTER = Suite("cluster", ("tests/cluster",))
_ORDERS = Suite("orders", ("tests/orders",))
_GLUE = Suite("horovod", ("tests/horovod",))
# This test takes Horovod from the cache, and compiles all of it if sources of compat/ differ.
_OF_THE_CACHE = "tests.horovod.test_portable.test_what_is_installed_here_can_be_put_elsewhere"
_BUILDER = Suite("builder", ("tests/horovod/test_builder.py", "tests/horovod/test_edits.py"))


def suites_for(file: str, *, weaker: bool = False) -> list[Suite]:
    """Returns the tests of a file's layer and of all layers above, nearest first. Errors of
    synchronisation may have no effect on this processor. For them the models of shared words and
    the thread sanitizer run as well."""
    folder, inner = file.split("/")[:2]
    if folder == "compat":
        return [_GLUE]
    if folder == "ringcoll":
        return [_BUILDER, _PYTHON] if inner == "horovod" else [_PYTHON, _PROCESSES, _CLUSTER]
    top = [_PYTHON, _PROCESSES, _CLUSTER]
    if inner == FRONT:
        return top
    layers = [layer for row in ORDER for layer in row]
    above = [layer for layer in layers if layer != inner and inner in allowed_layers(layer)]
    if not weaker:
        return [Suite(layer) for layer in (inner, *above)] + top
    pairs = [Suite(layer, (), preset) for layer in (inner, *above) for preset in ("dev", "tsan")]
    # The models come after a program that must compile: an error that does not compile does not
    # count as noticed.
    return [pairs[0], _ORDERS, *pairs[1:], *top]


def _module(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def nearest_first(file: str, tests: dict[str, str]) -> list[str]:
    """Of `tests` (path: text), returns those that name the module of a file, then those that name
    its package. For files of compat/, returns the test with the file's name."""
    if file.startswith("compat/"):
        stem = Path(file).stem.removeprefix("ringcoll_")
        return sorted(path for path in tests if Path(path).stem == f"test_{stem}")
    module = _module(file)
    package, _, name = module.rpartition(".")
    by_from = re.compile(rf"from {re.escape(package)} import .*\b{re.escape(name)}\b")
    naming = [path for path, text in tests.items() if module in text or by_from.search(text)]
    inside = [] if package == "ringcoll" else [path for path in tests if package in tests[path]]
    return sorted(naming) + sorted(set(inside) - set(naming))


def node_of(test: str) -> str | None:
    """Converts a test's name in XML, "tests.python.test_cli.test_version[a.b]", to pytest's."""
    found = re.match(r"(tests(?:\.\w+)*?\.test_\w+)\.(.+)", test, re.DOTALL)
    return f"{found[1].replace('.', '/')}.py::{found[2]}" if found else None


@dataclass
class Result:
    """`how` is one of HOW. `by` is the test that noticed, or why there is no result."""

    how: str
    by: str = ""
    seconds: float = 0
    what: dict[str, Any] = field(default_factory=dict)


NOTICED, LIVED, UNBUILT, UNDECIDED = "noticed", "LIVED", "does not compile", "undecided"
SAME = "changes no code"  # the compiler's output is the same, so no test could notice
HOW = (NOTICED, LIVED, UNBUILT, SAME, UNDECIDED)


class Ledger:
    """A file of results, with and without errors, for one state of the sources."""

    def __init__(self, path: Path, key: str) -> None:
        self._path, self._key = path, key
        known = json.loads(path.read_text()) if path.exists() else {}
        same = known.get("sources") == key
        self.results = {
            name: Result(**row) for name, row in (known["errors"] if same else {}).items()
        }
        self.without: dict[str, dict[str, Any]] = known["without"] if same else {}

    def save(self) -> None:
        errors = {name: asdict(result) for name, result in self.results.items()}
        text = {"sources": self._key, "without": self.without, "errors": errors}
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps(text, indent=1, ensure_ascii=False))
        fresh.replace(self._path)


class Record:
    """A committed file of results from any state of the sources. A hundred errors take longer than
    the sources stay unchanged, so the results are collected over many runs.

    An error that a test noticed stays noticed as long as the line exists, since the error's id
    contains the line's text. A new test may notice an error that lived: see `again`.
    """

    def __init__(self, path: Path, state: str, *, again: bool) -> None:
        self._path, self._state, self._again = path, state, again
        self.rows: dict[str, dict[str, str]] = json.loads(path.read_text()) if path.exists() else {}

    def known(self, mutant: Mutant) -> Result | None:
        row = self.rows.get(mutant.id)
        if not row or (self._again and row["how"] == LIVED):
            return None
        return Result(row["how"], row["by"], what={"state": row["state"]})

    def add(self, mutant: Mutant, result: Result) -> None:
        error = f"{mutant.line.file}: {difference(mutant)}"
        row = {"error": error, "how": result.how, "by": result.by, "state": self._state}
        self.rows[mutant.id] = row
        text = json.dumps(dict(sorted(self.rows.items())), indent=1, ensure_ascii=False)
        self._path.write_text(text + "\n")


class Workshop:
    """The copy. It is unchanged whenever no error is being tried."""

    def __init__(self, jobs: int, *, again: bool) -> None:
        self._jobs = jobs
        FOLDER.mkdir(parents=True, exist_ok=True)
        self._lock = (FOLDER / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StageFailed("another ci/mutate works in build/mutate: wait for it") from None
        files = _files()
        _copy(files)
        self.sources = {name: (TREE / name).read_text() for name in files if is_product(name)}
        self._tests = {
            name: (TREE / name).read_text()
            for name in files
            if name.startswith(("tests/python/test_", "tests/horovod/test_"))
        }
        self._ledger = Ledger(FOLDER / "results.json", _digest(files))
        self._record = Record(RECORD, _state(), again=again)
        self._configured: set[str] = set()
        self._programs: dict[str, str] = {}  # by suite: digest_of_code() without an error

    def known(self, mutant: Mutant) -> Result | None:
        return self._ledger.results.get(mutant.id) or self._record.known(mutant)

    def attempt(self, mutant: Mutant) -> Result:
        """Builds and tests with the error planted, and notes the result."""
        start = time.monotonic()
        try:
            result = self._attempt(mutant)
        finally:
            self._restore(mutant)
        result.seconds = round(time.monotonic() - start, 1)
        line = mutant.line
        what = {"file": line.file, "number": line.number, "line": line.text.strip()}
        result.what = what | {"changed": mutant.changed.strip()}
        self._ledger.results[mutant.id] = result
        self._ledger.save()
        if result.how != UNDECIDED:
            self._record.add(mutant, result)
        return result

    def _attempt(self, mutant: Mutant) -> Result:
        left_s = float(_BUILD_LIMIT_S)
        same = True
        for suite in suites_for(mutant.line.file, weaker=is_weaker(mutant)):
            if suite.name not in self._ledger.without:
                self._restore(mutant)
                self._run_without(suite)
            self._plant(mutant)
            built = self._build(suite, left_s)
            left_s -= built.seconds
            if built.status is None:
                return Result(UNDECIDED, f"to build it takes more than {_BUILD_LIMIT_S} s")
            if not built.ok:
                return Result(UNBUILT)
            if self._is_the_same(suite, mutant):
                continue
            same = False
            failing = self._failing(suite, mutant)
            if failing:
                return Result(NOTICED, f"{suite.name}: {failing}")
        return Result(SAME if same else LIVED)

    def _is_the_same(self, suite: Suite, mutant: Mutant) -> bool:
        """True if the compiler's output is the same as without the error; then the tests behave the
        same, too. (Papadakis et al., "Trivial compiler equivalence", ICSE 2015.)"""
        if language(mutant.line.file) != "c++" or suite in (_GLUE, _ORDERS):
            return False
        found = digest_of_code(suite.programs)
        if suite.name not in self._programs:
            self._restore(mutant)
            must(self._build(suite, _BUILD_LIMIT_S))
            self._programs[suite.name] = digest_of_code(suite.programs)
            self._plant(mutant)
            must(self._build(suite, _BUILD_LIMIT_S))
        return found == self._programs[suite.name]

    def _plant(self, mutant: Mutant) -> None:
        _write(TREE / mutant.line.file, mutant.applied(self.sources[mutant.line.file]))

    def _restore(self, mutant: Mutant) -> None:
        _write(TREE / mutant.line.file, self.sources[mutant.line.file])

    def _configure(self, preset: str) -> None:
        if preset in self._configured:
            return
        command = ["cmake", "--preset", preset]
        command += setup.python_for_cmake() if preset == "dev" else []
        command.append("-DRINGCOLL_SOURCES=planted")  # else each error would change the programs
        if shutil.which("ccache"):
            command.append("-DRINGCOLL_PCH=OFF")  # ccache does not work with precompiled headers
        must(stages.run(command, f"mutate-configure-{preset}", env=_build_env(), cwd=TREE))
        self._configured.add(preset)

    def _build(self, suite: Suite, limit_s: float) -> Outcome:
        """Builds what the suite needs of the copy as it is now."""
        if not suite.targets:
            return Outcome(0, 0, LOGS / "mutate-build.log")
        self._configure(suite.preset)
        command: list[str | Path] = ["cmake", "--build", suite.folder, "-j", str(self._jobs)]
        command += ["--target", *suite.targets]
        done = stages.run(
            command, "mutate-build", env=_build_env(), cwd=TREE, limit_s=max(1.0, limit_s)
        )
        if done.ok and suite.paths:
            install: list[str | Path] = ["cmake", "--install", suite.folder, "--prefix", _SITE]
            must(stages.run(install, "mutate-install", cwd=TREE))
            shutil.copytree(TREE / "ringcoll", _SITE / "ringcoll", dirs_exist_ok=True)
        if done.ok and suite is _GLUE:
            build: list[str | Path] = [
                setup.PYTHON,
                setup.CI / "support" / "glue.py",
                _HOROVOD,
                str(self._jobs),
            ]
            env = _build_env() | {"PYTHONPATH": str(_SITE)}
            return stages.run(build, "mutate-horovod", env=env, limit_s=max(1.0, limit_s))
        return done

    def _run_without(self, suite: Suite) -> None:
        """Notes how long a suite takes without an error, and which of its tests fail."""
        if suite is _GLUE and not (VENV / "bin" / "horovodrun").exists():
            raise StageFailed(
                "tests/horovod starts jobs with the horovodrun of .venv: run ./ci/setup"
            )
        with stages.stage(f"  {suite.name}, without an error"):
            must(self._build(suite, 2 * _BUILD_LIMIT_S))
            found = self._run(suite, _SUITE_LIMIT_S, suite.paths)
            failing = [name for name in found.failed if self._fails_alone(suite, name)]
        if not found.passed or not all(_is_test(suite, name) for name in failing):
            why = next(iter(found.failed.values()), "ran no test")
            raise StageFailed(f"{suite.name} fails without an error planted: {why}")
        for name in failing:
            stages.say(f"  {name} fails without an error, and is left out")
        self._ledger.without[suite.name] = {
            "seconds": round(found.seconds, 1),
            "failing": failing,
        }
        self._ledger.save()

    def _failing(self, suite: Suite, mutant: Mutant) -> str | None:
        """Returns a test that fails because of the error: it must fail again when it is repeated
        alone.

        On a busy machine a test may fail by chance. It is then left out, and the others run.
        """
        without = self._ledger.without[suite.name]
        limit_s = 60 + 3 * without["seconds"]
        left_out = list(without["failing"])
        order = self._order(suite, mutant)
        for _ in range(_REPEATS):
            failed = [*self._run(suite, limit_s, order, without=left_out, once=True).failed]
            if not failed:
                return None
            one = failed[0]
            if self._fails_alone(suite, one, limit_s):
                return one
            left_out.append(one)
        return None

    def _fails_alone(self, suite: Suite, test: str, limit_s: float = _SUITE_LIMIT_S) -> bool:
        """True if a test that failed among others fails alone, too. A program that died counts as
        failing."""
        if not _is_test(suite, test):
            return True
        return bool(self._run(suite, limit_s, suite.paths, only=[test]).failed)

    def _order(self, suite: Suite, mutant: Mutant) -> list[str]:
        if not suite.paths:
            return []
        parents = [Path(path) for path in suite.paths]
        tests = {path: text for path, text in self._tests.items() if Path(path).parent in parents}
        return [*nearest_first(mutant.line.file, tests), *suite.paths]

    def _run(
        self,
        suite: Suite,
        limit_s: float,
        paths: Sequence[str],
        *,
        only: Sequence[str] = (),
        without: Sequence[str] = (),
        once: bool = False,
    ) -> Report:
        """Runs a suite; with `once`, only up to its first failure."""
        without = [*without, _OF_THE_CACHE] if suite is _GLUE else without
        name = f"mutate-{suite.name}"
        xml = LOGS / f"{name}.xml"
        xml.unlink(missing_ok=True)
        make = _pytest if suite.paths else _native
        command = [*_BOUNDS[suite.preset], *make(suite, xml, paths, only, without, once)]
        with tempfile.TemporaryDirectory(prefix="ringcoll-", ignore_cleanup_errors=True) as scratch:
            env = setup.tools_env() | sanitizers.ENV | {"TMPDIR": scratch}
            path = f"{_HOROVOD / 'site'}:{_SITE}" if suite is _GLUE else str(_SITE)
            env |= {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
            try:
                done = stages.run(command, name, env=env, cwd=TREE, limit_s=limit_s)
            finally:  # before their folder is removed
                stages.end_leftovers(all_commands=True)
        return suites.count(suite.name, xml, done)


def _native(
    suite: Suite,
    xml: Path,
    _paths: Sequence[str],
    only: Sequence[str],
    without: Sequence[str],
    once: bool,
) -> list[str]:
    chosen = ":".join(only) or "*"
    left_out = ":".join([suites.FEWER_CASES, *without])
    command = [
        str(suite.folder / f"{suite.layer}_test"),
        f"--gtest_output=xml:{xml}",
        "--gtest_color=no",
    ]
    command += [f"--gtest_filter={chosen}{left_out}", *(["--gtest_fail_fast"] if once else [])]
    return command


def _pytest(
    _suite: Suite,
    xml: Path,
    paths: Sequence[str],
    only: Sequence[str],
    without: Sequence[str],
    once: bool,
) -> list[str]:
    command = [str(VENV / "bin" / "pytest"), "-q", "-p", "no:cacheprovider", f"--junitxml={xml}"]
    command += [f"--deselect={node_of(test)}" for test in without]
    command += ["-x"] if once else []
    return command + ([str(node_of(test)) for test in only] or list(paths))


def _is_test(suite: Suite, name: str) -> bool:
    """True if a failure's name identifies a test that can be run alone. A program that died has no
    such name."""
    return node_of(name) is not None if suite.paths else "." in name


def _files() -> list[str]:
    """Returns the paths of the files in the checkout that git tracks or would add."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise StageFailed(f"ci/mutate copies what git tracks: {done.stderr.strip()}")
    return sorted(name for name in set(done.stdout.split("\0")) if (ROOT / name).is_file())


def _state() -> str:
    """Returns the commit of the checkout, with a "+" if files have changed since."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--", "csrc", "ringcoll", "compat", "tests")
    return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")


def _copy(files: Iterable[str]) -> None:
    """Makes the copy equal to the checkout. Equal files keep their time, so they are not compiled
    again."""
    wanted = {TREE / name for name in files}
    for path in [path for path in TREE.rglob("*") if path.is_file() and path not in wanted]:
        if not path.is_relative_to(TREE / "build"):
            path.unlink()
    for path in wanted:
        source = ROOT / path.relative_to(TREE)
        if not path.exists() or path.read_bytes() != source.read_bytes():
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, path)


def _write(path: Path, text: str) -> None:
    """Writes only text that differs: a written file is compiled again."""
    if path.read_text() != text:
        path.write_text(text)


def digest_of_code(programs: Iterable[Path]) -> str:
    """Hashes the programs without debug information."""
    digest = hashlib.sha256()
    with tempfile.TemporaryDirectory() as scratch:
        for program in programs:
            bare = Path(scratch) / program.name
            strip = ["objcopy", "--strip-debug", "--remove-section=.note.gnu.build-id"]
            subprocess.run([*strip, program, bare], check=True)
            digest.update(f"\0{program.name}\0".encode() + bare.read_bytes())
    return digest.hexdigest()


def _digest(files: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for name in files:
        if name.startswith(_MATTERS):
            digest.update(f"\0{name}\0".encode() + (TREE / name).read_bytes())
    return digest.hexdigest()


def _build_env() -> dict[str, str]:
    """Returns variables for builds. With ccache, a removed error does not cause new compilation."""
    env = setup.tools_env()
    if shutil.which("ccache"):
        env |= {"CMAKE_CXX_COMPILER_LAUNCHER": "ccache", "CCACHE_NOHASHDIR": "1"}
        env |= {"CCACHE_BASEDIR": str(TREE)}
    return env
