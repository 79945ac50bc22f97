"""Tests that need an RDMA device: where they run, the device, and its counters.

A module marked ``pytestmark = pytest.mark.guest(...)`` runs in a guest of ci/rdma-vm. Modules with
as many guests and sockets share one boot: it comes with the first of their tests and runs all that
were chosen, and each is reported under its own name and with its own time. The mark's arguments are
options of ci/rdma-vm (guests, sockets, cpus, memory, timeout); of cpus and memory the largest
counts, and the timeouts add up. With ``guests=2`` every test runs in both at the same time, as on
two hosts; fixtures are made there and not here.

RINGCOLL_TEST_RDMA=host runs the same modules here, on this machine's own device.
"""

from __future__ import annotations

import ctypes
import ipaddress
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
CANNOT_BOOT = 77
BOOT_LIMIT_S = 150
MODULE_LIMIT_S = 280
MEETING_PORT = 7700
SENT_PACKETS = ("sent_pkts", "port_xmit_packets")  # of rxe, of most hardware
# Taken out of the environment, for to ringcoll they would be knobs that it does not know.
WHERE = os.environ.pop("RINGCOLL_TEST_RDMA", "")  # "", "guest" or "host"
REPORTS = os.environ.pop("RINGCOLL_TEST_REPORTS", "")
INDEX = int(os.environ.pop("RDMA_VM_GUEST", "0"))
HOSTS = os.environ.pop("RINGCOLL_TEST_HOSTS", "10.77.0.1,10.77.0.2" if WHERE == "guest" else "")
DEVICE = os.environ.pop("RINGCOLL_TEST_DEVICE", "")


def _end_with_pytest() -> None:
    """In a child: SIGTERM when pytest ends, however it does, for a guest would run on to its limit.
    (prctl(2), PR_SET_PDEATHSIG)"""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def _boot(command: list[str], timeout: float, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs a command by ci/rdma-vm; skips the test, with the reason, if no guest can be had."""
    line = [str(ROOT / "ci" / "rdma-vm"), "--timeout", str(timeout)]
    for name, value in options.items():
        values = value if isinstance(value, list) else [value]
        line += [f"--{name}={one}" for one in values]
    done = subprocess.run(
        [*line, "--", *command],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        preexec_fn=_end_with_pytest,
    )
    if done.returncode == CANNOT_BOOT:
        lines = [line.strip() for line in done.stderr.splitlines() if "    |" not in line]
        pytest.skip(" ".join(lines))
    return done


@pytest.fixture(scope="session")
def rdma_vm() -> Callable[..., subprocess.CompletedProcess[str]]:
    """``rdma_vm(command, timeout=60, **options)``: how the command ended in a guest."""
    if WHERE:
        pytest.skip("this test boots guests of its own")

    def run(command: list[str], timeout: float = 60, **options: Any) -> Any:
        return _boot(command, timeout, **options)

    return run


# --- Modules that run in a guest ---


@dataclass
class Verdict:
    """What guests said of one test: its failures, and why it was skipped."""

    failures: list[str]
    skipped: str | None = None
    seconds: float = 0


class GuestRun:
    """One run of pytest in one or two guests, for the chosen tests of some modules."""

    def __init__(self, guests: int, sockets: int) -> None:
        self.options = {"guests": guests, "sockets": sockets, "timeout": 0}
        self.nodes: list[str] = []
        self._modules: set[Path] = set()
        self._folder: Path | None = None
        self._end = ""

    def add(self, item: pytest.Item, options: dict[str, Any]) -> None:
        self.nodes.append(item.nodeid)
        if item.path in self._modules:
            return
        self._modules.add(item.path)
        self.options["timeout"] += options.get("timeout", MODULE_LIMIT_S)
        for name in {"cpus", "memory"} & set(options):
            self.options[name] = max(self.options.get(name, 0), options[name])

    def verdict(self, node: str, scratch: pytest.TempPathFactory) -> Verdict:
        if self._folder is None:
            self._folder = scratch.mktemp("guest")
            self._run(self._folder)
        verdict = Verdict([])
        for guest in range(self.options["guests"]):
            self._read(guest, node, verdict)
        return verdict

    def _run(self, folder: Path) -> None:
        # All are run there that were chosen here (-m).
        pytest_options = ["-q", "-p", "no:cacheprovider", f"--rootdir={ROOT}", "-m", ""]
        # Not `python -m pytest`, which would find the sources of ringcoll in the current folder.
        program = str(Path(sys.executable).with_name("pytest"))
        command = [program, *pytest_options, *self.nodes]
        variables = ["RINGCOLL_TEST_RDMA=guest", f"RINGCOLL_TEST_REPORTS={folder}"]
        done = _boot(command, out=folder, env=variables, **self.options)
        self._end = f"exit status {done.returncode}\n{done.stdout[-8000:]}{done.stderr[-4000:]}"

    def _read(self, guest: int, node: str, verdict: Verdict) -> None:
        assert self._folder is not None
        path = self._folder / f"reports.{guest}"
        lines = path.read_text().splitlines() if path.exists() else []
        reports = [report for report in map(json.loads, lines) if report["node"] == node]
        verdict.seconds = max(verdict.seconds, sum(report["seconds"] for report in reports))
        for report in reports:
            if report["outcome"] == "failed":
                verdict.failures.append(f"guest {guest}, {report['when']}:\n{report['text']}")
            elif report["outcome"] == "skipped":
                verdict.skipped = report["text"]
        if not any(report["when"] == "teardown" for report in reports):
            verdict.failures.append(f"guest {guest} did not finish it: {self._end}")


class GuestFailure(Exception):
    """The text of a failure in a guest."""


class GuestTest(pytest.Item):
    """Stands for a test that runs in a guest."""

    run: GuestRun
    scratch: pytest.TempPathFactory
    seconds: float | None = None

    def runtest(self) -> None:
        verdict = self.run.verdict(self.nodeid, self.scratch)
        self.seconds = verdict.seconds
        if verdict.failures:
            raise GuestFailure("\n".join(verdict.failures))
        if verdict.skipped is not None:
            pytest.skip(verdict.skipped)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, GuestFailure):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "guest(**options): the module runs in a guest of ci/rdma-vm")


@pytest.hookimpl(trylast=True)  # when others have chosen
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if WHERE:
        return
    runs: dict[tuple[int, int], GuestRun] = {}
    for place, item in enumerate(items):
        mark = item.get_closest_marker("guest")
        if mark is None:
            continue
        shape = (mark.kwargs.get("guests", 1), mark.kwargs.get("sockets", 1))
        run = runs.setdefault(shape, GuestRun(*shape))
        run.add(item, mark.kwargs)
        assert item.parent is not None
        stand_in = GuestTest.from_parent(item.parent, name=item.name)
        stand_in.run, stand_in.scratch = run, config._tmp_path_factory
        items[place] = stand_in
    for item in items:
        if isinstance(item, GuestTest):
            item.add_marker(pytest.mark.timeout(item.run.options["timeout"] + BOOT_LIMIT_S))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if isinstance(item, GuestTest) and call.when == "call" and item.seconds is not None:
        report.duration = item.seconds
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """In a guest: a line for each step of a test, with nothing in it that would need pytest."""
    if not REPORTS:
        return
    skip = report.longrepr if isinstance(report.longrepr, tuple) else None
    text = skip[2] if skip else report.longreprtext
    if report.outcome == "failed":  # of two guests each tells its end of the cables
        text += f"\n{_network()}"
    line = {
        "node": report.nodeid,
        "when": report.when,
        "outcome": report.outcome,
        "seconds": report.duration,
        "text": text,
    }
    with (Path(REPORTS) / f"reports.{INDEX}").open("a") as file:
        file.write(json.dumps(line) + "\n")


# --- For tests beside a device ---


@dataclass(frozen=True)
class Device:
    """A port of an RDMA device, by what the kernel says of it."""

    name: str
    port: int

    @property
    def folder(self) -> Path:
        return Path("/sys/class/infiniband") / self.name / "ports" / str(self.port)

    def counters(self) -> dict[str, int]:
        """All counters of the port, by the names that its driver gives them."""
        time.sleep(0.02)  # the kernel keeps what it read for 10 ms
        paths = [*self.folder.glob("counters/*"), *self.folder.glob("hw_counters/*")]
        texts = {path.name: path.read_text().strip() for path in paths}
        return {name: int(text) for name, text in texts.items() if text.isdigit()}

    @contextmanager
    def counting(self) -> Iterator[dict[str, int]]:
        """``with device.counting() as moved``: by how much each counter grew, once it is left."""
        moved: dict[str, int] = {}
        before = self.counters()
        yield moved
        moved |= {name: count - before.get(name, 0) for name, count in self.counters().items()}

    def packets_sent(self, counters: dict[str, int]) -> int:
        """That one of the counters, whatever the driver calls it."""
        found = [counters[name] for name in SENT_PACKETS if name in counters]
        assert found, f"{self.name} has no counter of packets among {sorted(counters)}"
        return max(found)

    def gid_index(self, address: str) -> int:
        """The RoCE v2 GID of an IP address of this host."""
        wanted = ipaddress.ip_address(address)
        for path in self.folder.glob("gids/*"):
            gid = ipaddress.IPv6Address(path.read_text().strip())
            if wanted not in (gid, gid.ipv4_mapped):
                continue
            if "v2" in (self.folder / "gid_attrs" / "types" / path.name).read_text():
                return int(path.name)
        raise LookupError(f"{self.name} has no RoCE v2 GID of {address}")


def _ports() -> Iterator[Device]:
    for path in sorted(Path("/sys/class/infiniband").glob("*/ports/*")):
        if "ACTIVE" in (path / "state").read_text():
            yield Device(path.parts[-3], int(path.name))


@pytest.fixture(scope="session")
def device() -> Device:
    """RINGCOLL_TEST_DEVICE (name:port), or the first port that is up."""
    if DEVICE:
        name, _, port = DEVICE.partition(":")
        return Device(name, int(port or 1))
    found = next(_ports(), None)
    assert found, "no RDMA port is up"
    return found


@pytest.fixture(scope="session")
def devices(device: Device) -> list[Device]:
    """All ports that are up, or the one that RINGCOLL_TEST_DEVICE names."""
    return [device] if DEVICE else list(_ports())


@pytest.fixture
def bring_up() -> Callable[[str], None]:
    """Brings an interface up again, for 10 s: once a guest's kernel refused to, and nobody knows
    why. What it says is told."""

    def up(interface: str) -> None:
        for left in range(20, -1, -1):
            command = ["ip", "link", "set", interface, "up"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return
            print(f"{interface} does not come up: {done.stderr}")
            if left:
                time.sleep(0.5)
        pytest.fail(f"{interface} stays down: {done.stderr}")

    return up


@pytest.fixture(scope="session")
def in_guest() -> bool:
    """Whether the interfaces here are a guest's, which a test may break."""
    return WHERE == "guest"


@dataclass
class Hosts:
    """Two hosts that run the same test. ``index`` is this one's."""

    index: int
    addresses: list[str]
    device: Device  # of this one
    test: str
    exchanges: int = 0

    @property
    def peer(self) -> str:
        return self.addresses[1 - self.index]

    def meet(self, limit_s: float = 280) -> None:
        """Returns when both have begun this test. One may have left the last one early."""
        end = time.monotonic() + limit_s
        while self._meet(f"{self.test} begins", limit_s) != f"{self.test} begins":
            assert time.monotonic() < end, "the other host does not come to this test"

    def exchange(self, text: str = "") -> str:
        """Returns, when both have called it, what the other one gave. Fails if the other one has
        left this test."""
        self.exchanges += 1
        here = f"{self.test} {self.exchanges}\n"
        theirs = self._meet(here + text, 120)
        assert theirs.startswith(here), f"here: {here}, the other host: {theirs}"
        return theirs.removeprefix(here)

    def _meet(self, text: str, limit_s: float) -> str:
        end = time.monotonic() + limit_s
        if self.index == 0:
            with socket.create_server((self.addresses[0], MEETING_PORT)) as server:
                server.settimeout(limit_s)
                try:
                    return _swap(server.accept()[0], text)
                except TimeoutError:
                    pytest.fail(f"the other host did not come\n{_network()}")
        while True:
            try:
                return _swap(socket.create_connection((self.peer, MEETING_PORT), 10), text)
            except OSError:
                if time.monotonic() > end:
                    pytest.fail(f"the other host was not reached\n{_network()}")
                time.sleep(0.1)


def _network() -> str:
    """What the kernel says of the interfaces and the neighbours: whether a cable is dead."""
    script = "ip -s link; ip neigh; tc -s qdisc"
    return subprocess.run(script, shell=True, capture_output=True, text=True, check=False).stdout


def _swap(connection: socket.socket, text: str) -> str:
    with connection:
        connection.settimeout(30)
        connection.sendall(text.encode())
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile() as file:
            return file.read()


@pytest.fixture
def hosts(request: pytest.FixtureRequest, device: Device) -> Hosts:
    """In a module of two guests; on real hosts RINGCOLL_TEST_HOSTS has both addresses."""
    if not HOSTS:
        pytest.skip("RINGCOLL_TEST_HOSTS does not name two hosts")
    found = Hosts(INDEX, HOSTS.split(","), device, request.node.nodeid)
    found.meet()
    return found
