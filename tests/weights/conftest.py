"""Mounts of a source in memory, each served by a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from members import Member
from stores import Cluster, FakeFactory, RealFactory

from ringcoll.weights.fuse.spool import Spool, default_parent

_SERVER = Path(__file__).parent / "serve_memory.py"
LIMIT_S = 30


class Mounted:
    """A mount and its server. ``ask("source.put(...)")`` is the value of an expression there."""

    def __init__(self, point: Path, words: list[str]) -> None:
        self.point = point
        self.log = point.parent / f"{point.name}.log"
        self.process = subprocess.Popen(
            [sys.executable, str(_SERVER), str(point), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log.open("wb"),
            text=True,
            cwd="/",
        )
        said = self.process.stdout.readline()
        assert said.startswith("mounted at "), self.log.read_text()

    def ask(self, expression: str) -> Any:
        assert "\n" not in expression
        self.process.stdin.write(expression + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, self.log.read_text()
        return json.loads(line)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(LIMIT_S)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal, and returns the exit status."""
        self.process.send_signal(number)
        return self.process.wait(LIMIT_S)

    def close(self) -> None:
        subprocess.run(["umount", "-l", self.point], capture_output=True, check=False)
        self.process.kill()
        with self.process:
            pass


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[..., Mounted]]:
    """``mount("--timeout", 2, at="other")``: a Mounted with no versions; gone at the test's end."""
    if not Path("/dev/fuse").exists():
        pytest.skip("there is no /dev/fuse")
    made: list[Mounted] = []

    def make(*words: object, at: str = "mount") -> Mounted:
        point = tmp_path / at
        with contextlib.suppress(FileExistsError):
            point.mkdir()
        made.append(Mounted(point, list(map(str, words))))
        return made[-1]

    yield make
    for mounted in made:
        mounted.close()
    Spool(default_parent()).close()  # removes what killed servers have left


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small tmpfs")
    point = tmp_path / "small"
    point.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", point], check=True)
    yield point
    subprocess.run(["umount", "-l", point], check=True)


_SUM = r"""
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Prints the sum of the float32 elements of a .npy file of version 1.0, which it maps. */
int main(int count, char **arguments) {
  int file = count == 2 ? open(arguments[1], O_RDONLY) : -1;
  struct stat about;
  if (file < 0 || fstat(file, &about) != 0) return 1;
  const uint8_t *bytes = mmap(NULL, about.st_size, PROT_READ, MAP_SHARED, file, 0);
  if (bytes == MAP_FAILED || memcmp(bytes, "\x93NUMPY\x01", 7) != 0) return 2;
  size_t start = 10 + (size_t)(bytes[8] | bytes[9] << 8);
  const float *values = (const float *)(bytes + start);
  double sum = 0;
  for (size_t i = 0; i < (about.st_size - start) / sizeof *values; ++i) sum += values[i];
  printf("%.1f\n", sum);
  return 0;
}
"""


@pytest.fixture(scope="session")
def c_reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A C program that maps a .npy file of float32 and prints the sum."""
    folder = tmp_path_factory.mktemp("c")
    (folder / "sum.c").write_text(_SUM)
    program = folder / "sum"
    command = ["gcc", "-O1", "-Wall", "-Werror", "-o", program, folder / "sum.c"]
    subprocess.run(command, check=True)
    return program


@pytest.fixture(params=["simulated", "real"])
def make(request: pytest.FixtureRequest) -> Iterator[Callable[..., Cluster]]:
    """``make(2, keep=3)``: a store of so many ranks."""
    made: list[Cluster] = []

    def cluster(ranks: int = 1, **settings: Any) -> Cluster:
        factory = FakeFactory() if request.param == "simulated" else RealFactory()
        made.append(Cluster(factory, ["a", "b", "c", "d"][:ranks], **settings))
        return made[-1]

    yield cluster
    for each in made:
        each.close()


@pytest.fixture
def start_member() -> Iterator[Callable[..., Member]]:
    """``start_member("join", address, "b")``: a Member, which is killed at the test's end."""
    members: list[Member] = []

    def start(*words: Any, **options: Any) -> Member:
        members.append(Member(*words, **options))
        return members[-1]

    yield start
    for member in members:
        member.close()


@pytest.fixture
def make_hosts() -> Iterator[Callable[..., Cluster]]:
    """``make_hosts("ab", replicas=1)``: a store with a rank on each of these hosts."""
    made: list[Cluster] = []

    def cluster(hosts: str, silence: float = 0.3, **settings: Any) -> Cluster:
        made.append(Cluster(FakeFactory(silence=silence), list(hosts), **settings))
        return made[-1]

    yield cluster
    for each in made:
        each.network.heal()
        for agent in each.network.agents:
            each.network.resume(agent)
        each.close()
