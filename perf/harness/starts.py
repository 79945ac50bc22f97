"""Starts of many ranks: the processes that they are threads of, and the stores where they meet."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import select
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import build

TIMEOUT_S = 300.0
# Ranks but rank 0, which has a process of its own, so that what it takes can be told apart.
PROCESSES = 3
STORES = ["tcp", "file", "horovod"]
TRANSPORTS = ["tcp", "loopback"]
COUNTING = "counting"
# To the store, to peers, and from them; more where a connection is made again.
PORTS_OF_A_RANK = 20
TIME_WAIT_S = 90.0


class StartError(Exception):
    """Ranks did not start; the message says why."""


@dataclass(frozen=True)
class Case:
    ranks: int
    transport: str
    store: str

    def __str__(self) -> str:
        return f"{self.ranks} ranks, {self.transport} transport, {self.store} store"

    def parts(self) -> list[tuple[int, int]]:
        """First rank and number of ranks of each process."""
        if self.transport == "loopback":  # which joins threads of one process
            return [(0, self.ranks)]
        rest = min(PROCESSES, self.ranks - 1)
        bounds = [1 + i * (self.ranks - 1) // rest for i in range(rest + 1)]
        return [(0, 1)] + [(a, b - a) for a, b in itertools.pairwise(bounds)]


@dataclass
class Start:
    """What one start took. Of a process with several ranks: a rank's part of it."""

    seconds: float
    processor_s: float
    descriptors: list[float]  # by process, as those that follow
    after_gather: list[float]
    kib: list[float]
    peak_kib: list[float]
    at_store: dict[str, Any] = field(default_factory=dict)


def build_driver(name: str, directory: Path, flags: list[str]) -> Path:
    source, program = build.DRIVERS / f"{name}.cc", directory / name
    include = [f"-I{build.CHECKOUT}/csrc/include", f"-I{build.CHECKOUT}/csrc"]
    command = ["c++", "-std=c++20", "-O2", "-Wall", *include, str(source), "-o", str(program)]
    build.run([*command, *flags, "-pthread"], name)
    return program


class Tools:
    """The programs, compiled from this checkout, against its library or another."""

    def __init__(self, directory: Path, library: Path | None, objects: Path | None = None) -> None:
        """`objects`: the folder that another library was built in, if what is made of its objects
        is wanted, too."""
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        if library is None:
            objects = directory / "ringcoll"
            library = build.build_library(objects)
        self._objects = objects
        library = library.resolve()
        self.library = library
        rpath = f"-Wl,-rpath,{library.parent}"
        self.starts = build_driver("ringcoll_starts", directory, [str(library), rpath])
        self.counting = build_driver("counting_store", directory, [])

    def has_objects(self) -> bool:
        return self._objects is not None

    def exchange_counts(self) -> Path:
        """Made of the library's objects: the C ABI takes no store that counts."""
        made = (self._objects or Path()) / "CMakeFiles"
        layers = ("base", "net", "connect", "store", "bootstrap")
        folders = [made / f"{layer}_layer.dir" for layer in layers]
        # A build keeps the objects of sources that are gone.
        objects = [
            str(path)
            for folder in folders
            for path in folder.rglob("*.o")
            if (build.CHECKOUT / path.relative_to(folder).with_suffix("")).exists()
        ]
        if not objects:
            raise StartError(f"exchange_counts: no objects of a build in {self._objects}")
        return build_driver(
            "exchange_counts", self._directory, [*objects, "-lsodium", "-llz4", "-lfmt"]
        )


class _Process:
    """A driver that is spoken to in lines."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def tell(self, line: str) -> None:
        assert self.process.stdin
        with contextlib.suppress(BrokenPipeError):  # it says why when it is asked
            self.process.stdin.write(line + "\n")

    def line(self) -> str:
        assert self.process.stdout
        there = select.select([self.process.stdout], [], [], TIMEOUT_S + 60)[0]
        line = self.process.stdout.readline() if there else ""
        if line:
            return line.strip()
        if not there:
            raise StartError("it does not answer")
        assert self.process.stderr
        said = self.process.stderr.read().strip().splitlines()
        raise StartError("\n".join(said[-3:]) or "it has ended")

    def close(self) -> None:
        """Its input ends, and so does it."""
        assert self.process.stdin and self.process.stdout and self.process.stderr
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()


@contextlib.contextmanager
def counting_store(tools: Tools) -> Iterator[tuple[str, dict[str, Any]]]:
    """Its URL, and what it has counted, once it is closed."""
    counted: dict[str, Any] = {}
    server = _Process([str(tools.counting)], {})
    try:
        yield f"horovod://127.0.0.1:{server.line()}/starts", counted
        assert server.process.stdin
        server.process.stdin.close()
        counted |= json.loads(server.line())
    finally:
        server.close()


@contextlib.contextmanager
def horovods_store() -> Iterator[tuple[str, dict[str, Any]]]:
    """Horovod's own server, in this process, with a handler that counts."""
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousServer

    counted: dict[str, Any] = {"requests": {}, "outcomes": []}
    lock = threading.Lock()

    class Counting(RendezvousHandler):  # type: ignore[misc]
        def handle_one_request(self) -> None:
            super().handle_one_request()
            with lock:
                method = str(getattr(self, "command", None))
                counted["requests"][method] = counted["requests"].get(method, 0) + 1

        def _put_value(self, scope: str, key: str, value: bytes) -> None:
            if key.endswith(".all"):
                counted["outcomes"].append(len(value))
            super()._put_value(scope, key, value)

    server = RendezvousServer()
    port = server.start(Counting)
    server.init([])
    try:
        yield f"horovod://127.0.0.1:{port}/starts", counted
    finally:
        server.stop()


def has_horovod() -> bool:
    return importlib.util.find_spec("horovod") is not None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def open_store(kind: str, tools: Tools) -> Iterator[tuple[str, dict[str, Any]]]:
    if kind == "tcp":
        yield f"tcp://127.0.0.1:{_free_port()}", {}
    elif kind == "file":
        with tempfile.TemporaryDirectory(prefix="perf-") as folder:
            yield f"file://{folder}", {}
    else:
        with counting_store(tools) if kind == COUNTING else horovods_store() as store:
            yield store


def _waiting_connections(sockstat: str) -> int:
    """Of "TCP: inuse 5 orphan 0 tw 3373 ...", the number behind tw."""
    words = next(line for line in sockstat.splitlines() if line.startswith("TCP:")).split()
    return int(words[words.index("tw") + 1])


def wait_for_ports(ranks: int, proc: Path = Path("/proc")) -> None:
    """Until those before have given theirs back: a connection that is closed keeps its port for a
    minute (TIME_WAIT), and a few starts of a thousand ranks take all that there are."""
    first, last = (proc / "sys/net/ipv4/ip_local_port_range").read_text().split()
    most = max(int(last) - int(first) - PORTS_OF_A_RANK * ranks, 0)
    until = time.monotonic() + TIME_WAIT_S
    while _waiting_connections((proc / "net/sockstat").read_text()) > most:
        if time.monotonic() > until:
            raise StartError(f"{ranks} ranks need more ports than ip_local_port_range leaves them")
        time.sleep(0.5)


def start(case: Case, tools: Tools) -> Start:
    wait_for_ports(case.ranks)
    environment = {
        "RINGCOLL_TRANSPORT": case.transport,
        "RINGCOLL_INTERFACE": "lo",
        "RINGCOLL_TIMEOUT_S": f"{TIMEOUT_S:.0f}",
        "RINGCOLL_LOG": "warning",
    }
    with open_store(case.store, tools) as (url, counted), contextlib.ExitStack() as started:
        processes = []
        for first, count in case.parts():
            command = [str(tools.starts), str(case.ranks), str(first), str(count), url]
            processes.append(_Process(command, environment))
            started.callback(processes[-1].close)
        for process in processes:
            process.line()
        answers = _ask(processes, "start")
        after_gather = _ask(processes, "gather")
        for process in processes:
            process.tell("end")
    return summarize(answers, after_gather, counted)


def _ask(processes: list[_Process], line: str) -> list[dict[str, Any]]:
    for process in processes:
        process.tell(line)
    return [json.loads(process.line()) for process in processes]


def summarize(
    answers: list[dict[str, Any]], after_gather: list[dict[str, Any]], counted: dict[str, Any]
) -> Start:
    def per_rank(name: str) -> list[float]:
        before = {"descriptors": "descriptors_before", "kib": "kib_before"}.get(name, "kib_before")
        return [(a[name] - a[before]) / a["ranks"] for a in answers]

    gathered = [
        (g["descriptors"] - a["descriptors_before"]) / a["ranks"]
        for a, g in zip(answers, after_gather, strict=True)
    ]
    return Start(
        seconds=max(a["end"] for a in answers) - min(a["begin"] for a in answers),
        processor_s=sum(a["processor_s"] for a in answers),
        descriptors=per_rank("descriptors"),
        after_gather=gathered,
        kib=per_rank("kib"),
        peak_kib=per_rank("peak_kib"),
        at_store=dict(counted),
    )


def count_exchange(tools: Tools, ranks: int, blob_bytes: list[int]) -> dict[str, Any]:
    """Requests and bytes of as many exchanges as there are sizes, without meshes."""
    program = tools.exchange_counts()
    command = [str(program), str(ranks), *map(str, blob_bytes)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        raise StartError(done.stderr.strip()[-500:])
    counted: dict[str, Any] = json.loads(done.stdout)
    return counted
