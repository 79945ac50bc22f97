"""Where a job's ranks run, and with which Python: on this host, or on emulated hosts."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from support.hosts import Cluster, Network, bits_per_second

from .jobs import Part

ONE_HOST = ""  # the rate of a place that is one host
TARGET_RATE = "1gbit"  # at which targets hold between hosts
# With frames of 1500 bytes the headers alone take 4.4 % of a link; with these, 0.7 %.
JUMBO_BYTES = 9000

# Prints the version of a module's package, and fails if the module cannot be found.
_VERSION = """
import importlib.metadata, importlib.util, sys
module, package = sys.argv[1:]
if not importlib.util.find_spec(module):
    sys.exit(1)
try:
    print(importlib.metadata.version(package))
except importlib.metadata.PackageNotFoundError:
    print(__import__(module).__version__)
"""


def wire_s(rate: str, size: int) -> float:
    return size / (bits_per_second(rate) / 8)


class Packaged(Protocol):
    """Whatever has a module, which tells whether a Python has it, and a package with a version."""

    @property
    def module(self) -> str: ...
    @property
    def package(self) -> str: ...


@dataclass(frozen=True)
class Pythons:
    """Those in which peers are looked for, in this order."""

    paths: tuple[str, ...] = (sys.executable,)

    @classmethod
    def of(cls, *others: Path | None) -> Pythons:
        """The one in use, and those of the others that exist."""
        return cls((sys.executable, *(str(path) for path in others if path and path.exists())))

    def find(self, peer: Packaged) -> tuple[str, str] | None:
        """The first Python that has the peer, and the peer's version."""
        for python in self.paths:
            if version := _version_in(python, peer.module, peer.package):
                return python, version
        return None


@functools.cache
def _version_in(python: str, module: str, package: str) -> str:
    """Empty if that Python does not have the module."""
    command = [python, "-P", "-c", _VERSION, module, package]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.split()[-1] if done.returncode == 0 else ""


def _on_this_host(words: list[str]) -> list[str]:
    return words


def _on(cluster: Cluster, index: int) -> Callable[[list[str]], list[str]]:
    host = cluster.hosts[index]
    return lambda words: host.command(["env", f"PERF_ADDRESS={host.addresses[0]}", *words])


@contextmanager
def parts_of(rates: Sequence[str], host_of_rank: Sequence[int] = ()) -> Iterator[list[Part]]:
    """A part for each rank, on hosts whose links have these rates ("": no limit); by default each
    rank has a host of its own. All ranks are on this host if all rates are ONE_HOST."""
    ranks = host_of_rank or range(len(rates))
    if not any(rates):
        yield [Part([rank], _on_this_host) for rank in range(len(ranks))]
        return
    with Cluster(len(rates), [Network(rates=tuple(rates), mtu=JUMBO_BYTES)]) as cluster:
        yield [Part([rank], _on(cluster, host)) for rank, host in enumerate(ranks)]
