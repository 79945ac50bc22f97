"""Jobs of several processes, started as users start them."""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from ringcoll.horovod import BuildError, builder, find_installed

JOBS = Path(__file__).parent / "jobs"
_SCRIPTS = Path(sys.executable).parent


@pytest.fixture(scope="session")
def sdist():
    """The pinned source of Horovod."""
    try:
        return builder.fetch_sdist(builder.cache_dir() / "source")
    except BuildError as error:
        pytest.skip(f"no source of Horovod: {error}")


@dataclass
class Done:
    """A job that has ended."""

    status: int
    output: str
    seconds: float


class Job:
    """A running job: its launcher and everything that came of it."""

    def __init__(self, command, environment, folder):
        self._began = time.monotonic()
        self._log = open(folder / "job.log", "w+", encoding="utf-8")  # noqa: SIM115
        self.process = subprocess.Popen(
            command,
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def wait(self, timeout=120):
        """Its end; a job that takes longer is ended and the test fails with its output."""
        try:
            status = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.end()
            pytest.fail(f"the job did not end in {timeout} s:\n{self.output()}")
        return Done(status, self.output(), time.monotonic() - self._began)

    def wait_for(self, path, seconds=60):
        """The text of a file that a rank writes, once it is there."""
        deadline = time.monotonic() + seconds
        while not path.exists():
            assert time.monotonic() < deadline, f"no {path.name} in {seconds} s:\n{self.output()}"
            assert self.process.poll() is None, f"the job has ended:\n{self.output()}"
            time.sleep(0.02)
        return path.read_text()

    def output(self):
        self._log.flush()
        self._log.seek(0)
        return self._log.read()

    def end(self):
        """Ends the launcher and its workers: each launcher puts its own into further sessions."""
        family = _descendants(self.process.pid)
        for pid in [self.process.pid, *family]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait(10)


def _descendants(pid):
    children = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        parent = int(text[text.rindex(")") + 2 :].split()[1])
        children.setdefault(parent, []).append(int(stat.parent.name))
    found, todo = [], [pid]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


LAUNCHERS = {
    "horovodrun --gloo": lambda n: [_SCRIPTS / "horovodrun", "--gloo", "-np", n, "-H", _local(n)],
    "horovodrun --mpi": lambda n: [_SCRIPTS / "horovodrun", "--mpi", "-np", n, "-H", _local(n)],
    "horovodrun": lambda n: [_SCRIPTS / "horovodrun", "-np", n, "-H", _local(n)],
    "horovodrun elastic": lambda n: [_SCRIPTS / "horovodrun", "-np", n],
    "python": lambda n: [],  # the script starts the job itself
    "mpirun": lambda n: ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", n],
}


def _local(n):
    return f"localhost:{n}"


def backend_missing():
    """Why jobs cannot run here, or None."""
    found = find_installed()
    if found is None or not found.has_backend:
        return "no Horovod with the backend is installed: ringcoll horovod install"
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    return None


def mpi_missing():
    return None if shutil.which("mpirun") else "mpirun is not installed"


def _names_tensorflow(script, arguments):
    words = [(JOBS / script).read_text(), *map(str, arguments)]
    return any(name in text for text in words for name in ("tensorflow", "keras"))


def _without_tensorflow():
    """horovodrun asks the first framework that it can import what it was built with, for which
    torch will do: TensorFlow takes several seconds to import."""
    paths = (str(JOBS / "without_tensorflow"), os.environ.get("PYTHONPATH"))
    return {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def _launch(
    folder,
    script,
    *arguments,
    np=2,
    launcher="horovodrun --gloo",
    options=(),
    tensorflow=None,
    **named,
):
    if backend_missing():
        pytest.skip(backend_missing())
    if launcher in ("mpirun", "horovodrun --mpi") and mpi_missing():
        pytest.skip(mpi_missing())
    start = LAUNCHERS[launcher](str(np)) if isinstance(launcher, str) else launcher
    command = [*start, *options, sys.executable, JOBS / script, *arguments]
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HOROVOD_", "RINGCOLL_", "OMPI_", "PMI"))
    }
    environment.update(
        PATH=f"{_SCRIPTS}:{environment.get('PATH', '')}",
        OMPI_ALLOW_RUN_AS_ROOT="1",
        OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
        OMP_NUM_THREADS="1",
        TF_CPP_MIN_LOG_LEVEL="2",
        **named,
    )
    if not (_names_tensorflow(script, arguments) if tensorflow is None else tensorflow):
        environment |= _without_tensorflow()
    return Job([str(part) for part in command], environment, folder)


@pytest.fixture
def without_tensorflow():
    """Variables for a program that is not to find TensorFlow."""
    return _without_tensorflow()


@pytest.fixture(scope="session")
def launch():
    """launch(folder, script, *arguments, np=2, launcher=…, tensorflow=None, **environment) -> Job,
    which the caller waits for or ends. The launcher: one of LAUNCHERS, or a command. Skips the test
    if the job cannot run here. Jobs that do not name TensorFlow are kept from it, unless told
    otherwise."""
    return _launch


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory, launch):
    """folder_of(script, *arguments, limit_s=120, **options) -> the folder of a job that has ended
    well. What is started alike in a module runs once, when it is first asked for. The folder is the
    script's first argument, and where it is run."""
    jobs = {}

    def run(script, *arguments, limit_s=120, **options):
        start = script, arguments, tuple(sorted(options.items()))
        if start not in jobs:
            folder = tmp_path_factory.mktemp(Path(script).stem)
            job = launch(folder, script, folder, *arguments, **options)
            jobs[start] = folder, None
            jobs[start] = folder, job.wait(limit_s)
        folder, done = jobs[start]
        assert done is not None, f"{start} did not end when it ran first"
        assert done.status == 0, f"{start}: {done.output[-6000:]}"
        return folder

    return run


@pytest.fixture
def start(tmp_path, launch):
    """The same in a folder of the test's own; a job that is left is ended with the test."""
    jobs = []

    def run(script, *arguments, **options):
        jobs.append(launch(tmp_path, script, *arguments, **options))
        return jobs[-1]

    yield run
    for job in jobs:
        if job.process.poll() is None:
            job.end()
