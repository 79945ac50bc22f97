"""The rings of tests: what each contains, and how it is run and counted."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from support import report, sanitizers, setup
from support.report import Report
from support.setup import Level
from support.stages import (
    LOGS,
    ROOT,
    VENV,
    Outcome,
    StageFailed,
    end_leftovers,
    in_background,
    must,
    run,
    stage,
    tail,
)

# Folders of tests/ for each part that runs pytest. The lists of one part run in parallel, so they
# take about as long as one another. A file in one list is left out of its folder in another.
FOLDERS = {
    "checks": [["ci"], ["perf"]],
    "ring4": [
        ["processes", "cluster", "abi", "soak", "orders"],
        [
            "processes/test_long_waits.py",
            "cluster/test_lost_hosts.py",
            "remote/test_tables_hosts.py",
            "weights/test_store_faults.py",
            "weights/test_store_hosts.py",
        ],
        ["processes/test_leaks.py"],
        ["remote"],
        ["weights"],
        ["weights/test_model.py", "weights/test_fuse_stress.py", "weights/test_fuse_faults.py"],
    ],
    "ring5": [
        ["horovod"],
        ["python", "examples", "horovod/test_differential.py", "horovod/test_adasum.py"],
    ],
    "rdma": [
        ["rdma"],
        [
            "rdma/test_ranks_on_two_hosts.py",
            "rdma/test_agents_on_two_hosts.py",
            "rdma/test_native.py",
        ],
    ],
    "mxnet": [["mxnet"]],
    "engines": [["engines"]],
}
# Layers whose C++ tests a part runs, in lists as above.
RING_LAYERS = {
    "ring1": [["base", "schedule", "reduce", "delta", "rules", "table", "topology"]],
    "ring2": [  # they mostly wait
        ["shm", "net", "verbs", "transport", "life", "measure"],
        ["mesh", "comm"],
        ["connect", "store", "serving"],
        ["bootstrap", "remote"],
    ],
    "ring3": [["coll", "abi"], ["p2p", "engine"]],
}
# Pure layers: the thread sanitizer would find nothing in them.
_WITHOUT_THREADS = ("schedule", "reduce", "delta", "rules", "table", "topology")
SANITIZERS = ("asan", "tsan")
# A filter for GoogleTest: suites with this name have the additional cases of --exhaustive.
FEWER_CASES = "-Exhaustive/*"
# For the tests of coll under the thread sanitizer, while other work runs.
_SUITE_LIMIT_S = 1800
# For all cases of coll_test under the thread sanitizer.
_EXHAUSTIVE_SUITE_LIMIT_S = 3600
_PYTHON_LIMIT_S = 2700
_ANALYSIS_LIMIT_S = 5400  # at low priority


class When(Enum):
    """The runs that a part belongs to. A part that --only names runs in any case."""

    ALWAYS = "always"
    SANITIZERS = "without --fast"
    EXHAUSTIVE = "with --exhaustive"

    def holds(self, *, fast: bool, exhaustive: bool) -> bool:
        if self is When.SANITIZERS:
            return not fast
        return self is When.ALWAYS or exhaustive


@dataclass(frozen=True)
class Part:
    """A part that `--only` can name: its short and long name, the level that must be set up, and
    how to run it.

    `run` adds to a report; its second argument says whether exhaustive cases are included.
    """

    short: str
    title: str
    level: Level
    run: Callable[[Report, bool], None]
    when: When = When.ALWAYS

    @property
    def needs_cxx_tests(self) -> bool:
        """True if it needs the C++ tests of the preset dev."""
        return self.short in RING_LAYERS or self.short == "rdma"


@functools.cache
def begin_to_build(preset: str) -> Future[None]:
    """Starts to build the C++ tests of a preset in the background, once. Precondition:
    setup.packages() was called."""

    def build() -> None:
        env, jobs = setup.tools_env(), str(os.cpu_count() or 1)
        must(run(["cmake", "--preset", preset], f"configure-{preset}", env=env))
        must(run(["cmake", "--build", "--preset", preset, "-j", jobs], f"build-{preset}", env=env))

    return ThreadPoolExecutor(1).submit(build)


@functools.cache
def built(preset: str) -> Path:
    """Waits until the C++ tests of a preset are built, and returns their folder."""
    with stage(f"C++ tests: build preset {preset}"):
        begin_to_build(preset).result()
    return ROOT / "build" / preset


def count(part: str, xml: Path, outcome: Outcome) -> Report:
    """Returns the results of a test program, from its XML or, if it died first, from its log."""
    if xml.exists():
        found = report.read_xml(xml, part)
        if not outcome.ok and not found.failed:  # such as a leak found at exit
            found.failed[xml.stem] = f"{outcome.reason()}:\n{tail(outcome.log)}"
    else:
        found = report.read_gtest_log(
            outcome.log, part, f"{outcome.reason()}:\n{tail(outcome.log)}"
        )
    if not found.passed and not found.failed:
        found.failed[xml.stem] = "ran no test"
    found.seconds = outcome.seconds
    return found


def _native_layer(part: str, preset: str, layer: str, exhaustive: bool) -> Report:
    name = f"{preset}-{layer}"
    program = built(preset) / f"{layer}_test"
    if not program.exists():
        return Report(part, failed={name: f"csrc/{layer} has no tests"})
    xml = LOGS / f"{name}.xml"
    xml.unlink(missing_ok=True)
    command: list[str | Path] = [program, f"--gtest_output=xml:{xml}", "--gtest_color=no"]
    command.append(f"--gtest_filter={'*' if exhaustive else FEWER_CASES}")
    if preset == "tsan":
        # ThreadSanitizer cannot place its shadow if the kernel randomises addresses with many bits.
        command = ["setarch", "-R", *command]
    env = {**setup.tools_env(), **sanitizers.ENV}
    limit_s = _EXHAUSTIVE_SUITE_LIMIT_S if exhaustive else _SUITE_LIMIT_S
    return count(part, xml, run(command, name, env=env, limit_s=limit_s))


def native(preset: str, lists: list[list[str]], result: Report, exhaustive: bool) -> None:
    """Runs the test programs of layers: the lists in parallel, and each list in its order. Under
    sanitizers, where tests compute more than they wait, as many lists as there are cores."""
    built(preset)
    workers = os.cpu_count() if preset in SANITIZERS else len(lists)

    def run_list(layers: list[str]) -> list[Report]:
        return [_native_layer(result.part, preset, layer, exhaustive) for layer in layers]

    with ThreadPoolExecutor(workers) as pool:
        for reports in pool.map(run_list, lists):
            for found in reports:
                result.add(found)


def _pytest(
    part: str,
    folders: list[str],
    elsewhere: list[str],
    exhaustive: bool,
    env: Mapping[str, str],
    *,
    sanitized: bool = False,
    environment: Path = VENV,
) -> Report:
    prefix = "asan-" if sanitized else ""
    name = f"{prefix}pytest-" + "-".join(folder.replace("/", "-") for folder in folders)
    xml = LOGS / f"{name}.xml"
    xml.unlink(missing_ok=True)
    command = [
        str(environment / "bin" / "pytest"),
        "-q",
        "-p",
        "no:cacheprovider",
        f"--junitxml={xml}",
    ]
    marks = [] if exhaustive else ["not exhaustive"]
    marks += ["not forks"] if sanitized else []
    command += ["-m", " and ".join(marks)]
    command += [f"--ignore=tests/{name}" for name in elsewhere]
    command += [f"tests/{folder}" for folder in folders]
    return count(part, xml, run(command, name, env=env, limit_s=_PYTHON_LIMIT_S))


def _there(folders: list[str]) -> list[str]:
    return [folder for folder in folders if (ROOT / "tests" / folder).exists()]


def python(short: str, result: Report, exhaustive: bool) -> None:
    """Runs pytest over the folders of a part."""
    groups = [there for folders in FOLDERS[short] if (there := _there(folders))]
    files = {name for group in groups for name in group if name.endswith(".py")}

    def run_group(group: list[str]) -> Report:
        elsewhere = sorted(files.difference(group))
        return _pytest(result.part, group, elsewhere, exhaustive, setup.tools_env())

    with ThreadPoolExecutor() as pool:
        for found in pool.map(run_group, groups):
            result.add(found)


def asan_python(result: Report, exhaustive: bool) -> None:
    """Runs tests/python with a package of its own. Any sanitizer report is a failure."""
    setup.sanitized(sanitizers.PACKAGE)
    env = setup.tools_env() | sanitizers.environment()
    asked = [str(setup.PYTHON), "-c", "import ringcoll; print(ringcoll._core.__file__)"]
    which = must(run(asked, "asan-python-probe", env=env, cwd=Path("/"))).log.read_text()
    if str(sanitizers.PACKAGE) not in which.splitlines()[-1]:
        raise StageFailed(f"Python finds another ringcoll than the instrumented one:\n{which}")
    result.add(_pytest(result.part, ["python"], [], exhaustive, env, sanitized=True))
    result.failed |= sanitizers.found()


def _tidy(folder: str) -> bool:
    return not folder.startswith((".", "_"))


def unclaimed() -> list[str]:
    """Returns layers and folders of tests that no ring runs."""
    layers = {layer for lists in RING_LAYERS.values() for names in lists for layer in names}
    tested = {path.relative_to(ROOT / "csrc").parts[0] for path in ROOT.glob("csrc/**/*_test.cc")}
    claimed = {name for groups in FOLDERS.values() for group in groups for name in group}
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir()}
    lost = [f"csrc/{layer}" for layer in sorted(tested - layers)]
    return lost + [f"tests/{name}" for name in sorted(folders - claimed) if _tidy(name)]


def _cxx_files() -> list[str]:
    folders = ("csrc", "compat", "docs", "examples", "perf", "tests")
    suffixes = (".h", ".cc", ".c")
    found = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    return sorted(str(path.relative_to(ROOT)) for path in found if path.suffix in suffixes)


def _pages() -> list[str]:
    return ["README.md", "CHANGELOG.md", "perf/README.md", "perf/mechanisms.md", "docs"]


def _checks() -> dict[str, list[str]]:
    tool = str(VENV / "bin") + "/"
    python_program = str(setup.PYTHON)
    return {
        "layers": [python_program, "ci/check_layers.py"],
        "sizes": [python_program, "ci/check_sizes.py"],
        "headers": [python_program, "ci/check_headers.py"],
        "knobs": [python_program, "ci/check_knobs.py"],
        "links": [python_program, "ci/check_links.py"],
        "clang-tidy": [python_program, "ci/check_tidy.py", "build/analysis"],
        "clang-format": [tool + "clang-format", "--dry-run", "-Werror", *_cxx_files()],
        "ruff": [tool + "ruff", "check", "--quiet", "."],
        "ruff-format": [tool + "ruff", "format", "--check", "."],
        "mdformat": [tool + "mdformat", "--check", *_pages()],
        "mypy": [tool + "mypy"],
    }


# These compile everything again.
_ANALYSES = ("headers", "clang-tidy")
_NEW_COMMITS = 50  # those whose sources clang-tidy reads with --fast


def _check(part: str, checks: Mapping[str, list[str]], *, background: bool = False) -> Report:
    result = Report(part)
    for name, words in checks.items():
        command: list[str | Path] = [*words]
        if background:
            command = in_background(command)
        outcome = run(command, f"check-{name}", env=setup.tools_env(), limit_s=_ANALYSIS_LIMIT_S)
        result.seconds += outcome.seconds
        if outcome.ok:
            result.passed += 1
        else:
            result.failed[name] = f"{outcome.reason()}:\n{tail(outcome.log, 30)}"
    return result


def checks(result: Report, exhaustive: bool) -> None:
    """Runs the checks of layers, sizes, format, types and documents, and the tests of ci/ and
    perf/."""
    with ThreadPoolExecutor(1) as pool:
        mine = {name: words for name, words in _checks().items() if name not in _ANALYSES}
        checked = pool.submit(_check, result.part, mine)
        python("checks", result, exhaustive)
        result.add(checked.result())
    for lost in unclaimed():
        result.failed[lost] = "has tests, and no part of ci/test runs them"


_analyses: list[Future[Report]] = []  # one, once it was begun


def begin_analyses(fast: bool, after: Future[None] | None = None) -> None:
    """Starts the analyses in the background, at low priority, once. If `fast`, clang-tidy reads
    what is new alone. Precondition: setup.environment() was called."""
    mine = {name: words for name, words in _checks().items() if name in _ANALYSES}
    if fast:
        mine["clang-tidy"] += ["--commits", str(_NEW_COMMITS)]

    def analyse() -> Report:
        if after:
            wait([after])
        must(run(["cmake", "--preset", "analysis"], "configure-analysis", env=setup.tools_env()))
        return _check("analysis", mine, background=True)

    if not _analyses:
        _analyses.append(ThreadPoolExecutor(1).submit(analyse))


def analysis(result: Report, exhaustive: bool) -> None:
    """Adds what the analyses have found."""
    if not _analyses:
        raise StageFailed("the analyses were not begun, for what comes before them has failed")
    result.add(_analyses[0].result())


def mxnet(result: Report, exhaustive: bool) -> None:
    """Runs tests/mxnet in the environment that has MXNet."""
    setup.mxnet()
    env = setup.tools_env()
    env |= {"PATH": f"{setup.MXNET / 'bin'}:{env['PATH']}", "VIRTUAL_ENV": str(setup.MXNET)}
    result.add(_pytest(result.part, ["mxnet"], [], exhaustive, env, environment=setup.MXNET))


def rdma(result: Report, exhaustive: bool) -> None:
    """Runs the tests that need an RDMA device, in guests that have one (ci/rdma-vm)."""
    if os.geteuid() == 0:  # without root the tests are skipped and name what is missing
        setup.packages("apt-packages-rdma.txt")
    python("rdma", result, exhaustive)


def engines(result: Report, exhaustive: bool) -> None:
    """Installs other programs that start Horovod jobs, and runs the tests of them."""
    setup.engines()
    python("engines", result, exhaustive)


def _ring(short: str) -> Callable[[Report, bool], None]:
    return lambda result, exhaustive: native("dev", RING_LAYERS[short], result, exhaustive)


def _folders(short: str) -> Callable[[Report, bool], None]:
    return lambda result, exhaustive: python(short, result, exhaustive)


def _sanitized(preset: str, without: Iterable[str] = ()) -> Callable[[Report, bool], None]:
    lists = [
        [layer for layer in names if layer not in without]
        for lists in RING_LAYERS.values()
        for names in lists
    ]
    return lambda result, exhaustive: native(preset, lists, result, exhaustive)


_ENGINES = [
    Part(
        "engines",
        "engines that start jobs (Ray, Spark, mpirun over ssh)",
        Level.HOROVOD,
        engines,
        When.EXHAUSTIVE,
    )
    for _ in _there(["engines"])
]
PARTS = [
    Part("checks", "checks", Level.RINGCOLL, checks),
    Part("ring1", "ring 1 (pure)", Level.TOOLS, _ring("ring1")),
    Part("ring2", "ring 2 (transports)", Level.TOOLS, _ring("ring2")),
    Part("ring3", "ring 3 (collectives)", Level.TOOLS, _ring("ring3")),
    Part("ring4", "ring 4 (processes, emulated hosts)", Level.RINGCOLL, _folders("ring4")),
    Part("ring5", "ring 5 (Python and Horovod)", Level.HOROVOD, _folders("ring5")),
    Part("mxnet", "MXNet over tables", Level.RINGCOLL, mxnet),
    Part("rdma", "RDMA (verbs in a guest)", Level.HOROVOD, rdma),
    # Started earlier at low priority, and finished here.
    Part("analysis", "analysis (clang-tidy, headers)", Level.TOOLS, analysis),
    Part(
        "asan",
        "rings 1-3 under address and undefined-behaviour sanitizers",
        Level.TOOLS,
        _sanitized("asan"),
        When.SANITIZERS,
    ),
    Part(
        "asan-python",
        "Python under address and undefined-behaviour sanitizers",
        Level.TOOLS,
        asan_python,
        When.SANITIZERS,
    ),
    Part(
        "tsan",
        "rings 1-3 under the thread sanitizer",
        Level.TOOLS,
        _sanitized("tsan", without=_WITHOUT_THREADS),
        When.SANITIZERS,
    ),
    *_ENGINES,
]


def run_part(part: Part, exhaustive: bool) -> Report:
    """Sets up what the part needs and runs it. A process that it leaves running is a failure."""
    result = Report(part.title)
    setup.prepare(part.level)
    if part.needs_cxx_tests:
        built("dev")
    elif part.short in SANITIZERS:
        built(part.short)
    with stage(part.title):
        part.run(result, exhaustive)
    for left in end_leftovers(grace_s=2):
        result.failed[f"left running: {left}"] = "ended by ci/test"
    if not result.passed and not result.failed:
        result.failed[part.short] = "ran no test"
    expected = report.read_expected(setup.CI / "expected-skips.txt")
    for name, reason in report.unexpected_skips(result, part.short, expected).items():
        result.skipped.pop(name)
        result.failed[name] = f"skipped, which ci/expected-skips.txt does not expect: {reason}"
    return result
