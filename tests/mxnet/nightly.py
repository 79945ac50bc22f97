"""Runs MXNet's nightly suites by MXNet's own stores and by ringcoll's, and prints a table of both.

Each runs unchanged in a copy of its folder, with as many servers as workers: docs/parameters.md.
"""

from __future__ import annotations

import argparse
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from launched import Launched

VARIABLE = "RINGCOLL_MXNET"
TRACEBACK = "Traceback (most recent call last):"
STORES = {"MXNet's own": "0", "ringcoll": "1"}  # values of the variable

# Changes MXNet before a suite runs: CPUs stand in for GPUs, and floats for integers in a shape.
STAND_INS = """
import runpy, sys, mxnet
from mxnet.ndarray import NDArray
plain = NDArray.reshape
def reshape(self, *shape, **kwargs):
    whole = [tuple(map(int, each)) if isinstance(each, tuple) else each for each in shape]
    return plain(self, *whole, **kwargs)
NDArray.reshape, mxnet.gpu, sys.argv = reshape, mxnet.cpu, sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclass(frozen=True)
class Part:
    """One command line of MXNet's CI, or one that goes further than it without a GPU."""

    line: str
    stand_ins: bool = False
    settings: str = ""  # of the environment, as NAME=VALUE

    def command(self) -> list[str]:
        return [sys.executable, *(["-c", STAND_INS] * self.stand_ins), *self.line.split()]

    def __str__(self) -> str:
        return f"`{f'{self.settings} {self.line}'.strip()}`" + ", stand-ins" * self.stand_ins


SYNC, DEVICE = "dist_sync_kvstore.py", "dist_device_sync_kvstore"
TYPES = ("gluon_step", "gluon_sparse_step", "gluon_type", "invalid", "default")
PARTS = [
    *(Part(f"{SYNC} --type={each}_cpu") for each in TYPES),
    Part(f"{SYNC} --type=default_cpu", stand_ins=True),
    Part(f"{SYNC} --type=default_cpu --no-multiprecision", stand_ins=True),
    Part(f"{SYNC} --type=compressed_cpu --nrepeat=1"),  # CI's 7 repeats take minutes of Python
    Part(f"{SYNC} --type=init_gpu --no-gpu"),
    Part(f"{SYNC} --type=init_gpu", stand_ins=True),
    Part("dist_async_kvstore.py"),
    Part(f"{DEVICE}.py"),
    Part(f"{DEVICE}.py", stand_ins=True),
    Part(f"{DEVICE}_custom.py"),
    Part(f"{DEVICE}_custom.py", stand_ins=True),
    Part(f"{DEVICE}_custom.py", True, "DMLC_PS_VAN_TYPE=p3 DMLC_PS_WATER_MARK=10"),
    Part("test_server_profiling.py"),
    Part("dist_lenet.py"),
]


@dataclass(frozen=True)
class Outcome:
    state: str  # passes, fails or hangs
    why: str = ""


def reason(said: str, code: int) -> str:
    """The last exception that a process has printed, or else how it ended."""
    _, found, after = said.rpartition(TRACEBACK)
    lines = [line for line in after.splitlines() if line and not line[0].isspace()]
    if not found or not lines:
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    short = re.sub(r"^(\w+\.)+(?=\w+(:|$))", "", lines[0])  # without the module of the class
    return short if len(short) <= 110 else short[:110] + " …"


def outcome(job: Launched, limit_s: float) -> Outcome:
    """Waits until all processes have succeeded or one has failed, and ends the others."""
    with ThreadPoolExecutor(len(job.processes)) as pool:
        waiting = {pool.submit(each.communicate): each for each in job.processes}
        try:
            for done in as_completed(waiting, limit_s):
                if code := waiting[done].returncode:
                    return Outcome("fails", reason(done.result()[0], code))
            return Outcome("passes")
        except TimeoutError:
            pass
        finally:
            for each in job.processes:
                each.kill()
    raised = [said for said, _ in (done.result() for done in waiting) if TRACEBACK in said]
    return Outcome("hangs", reason(raised[0], 0) if raised else f"no end within {limit_s:g} s")


def run(part: Part, source: Path, workers: int, ringcoll: str, limit_s: float) -> Outcome:
    """Runs a part in a copy of its folder."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(source, folder, dirs_exist_ok=True)
        env = dict(each.split("=") for each in part.settings.split()) | {VARIABLE: ringcoll}
        return outcome(Launched(part.command(), workers, workers, Path(folder), **env), limit_s)


def summary(outcomes: Mapping[int, Outcome]) -> str:
    """Of the outcomes by numbers of workers: the state, or the states if they differ."""
    if len(states := {each.state for each in outcomes.values()}) == 1:
        return states.pop()
    return ", ".join(f"{each.state} with {workers}" for workers, each in outcomes.items())


def row(part: Part, results: Mapping[str, Mapping[int, Outcome]]) -> str:
    """A line of the table, from the outcomes by stores and numbers of workers."""
    whys: dict[str, list[str]] = {}  # the stores that each reason is of
    for store, outcomes in results.items():
        for why in {each.why: None for each in outcomes.values() if each.why}:
            whys.setdefault(why, []).append(store)
    told = "; ".join(f"{' and '.join(stores)}: {why}" for why, stores in whys.items())
    cells = [str(part), *map(summary, results.values()), told]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def table(source: Path, parts: Iterable[Part], counts: list[int], limit_s: float) -> Iterator[str]:
    yield f"| suite | {' | '.join(STORES)} | why not |"
    yield "|" + " -- |" * (2 + len(STORES))
    for part in parts:
        ends = {s: {n: run(part, source, n, v, limit_s) for n in counts} for s, v in STORES.items()}
        yield row(part, ends)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for one job")
    parser.add_argument("--only", default="", help="only suites with this text in them")
    options = parser.parse_args()
    chosen = [part for part in PARTS if options.only in str(part)]
    for line in table(options.folder, chosen, options.workers, options.limit):
        print(line, flush=True)
