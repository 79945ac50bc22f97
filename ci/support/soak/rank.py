"""What a process of a job does: it plays the script of its rank, and writes how that went."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import ringcoll
from support.soak.buffers import Wrong
from support.soak.play import Player
from support.soak.script import Script
from support.soak.usage import Usage, keep_nothing_back, settles, usage

# What one rank may have more after a lap than after the one before: what the interpreter keeps;
# places of the arena, of 4 MiB here, that had not been used before; of waits over tcp as many
# descriptors as threads have waited at one time (transport/tcp/waker.h); a thread for calls and one
# for messages, which are made where nobody waits for these.
MOST_OF_A_LAP = Usage(anon_kib=768, shmem_kib=1536, descriptors=3, threads=1)


@dataclass
class Verdict:
    """How a rank ended; `error` is empty if all went well."""

    error: str = ""
    kind: str = ""
    trace: str = ""
    when: float = 0.0  # monotonic clock: whose came first is the cause
    usages: tuple[Usage, ...] = ()

    def write(self, path: Path) -> None:
        fresh = path.with_name(f"{path.name}.new")
        fresh.write_text(json.dumps(asdict(self)))
        fresh.rename(path)

    @classmethod
    def read(cls, path: Path) -> Verdict | None:
        with contextlib.suppress(OSError):
            found: dict[str, Any] = json.loads(path.read_text())
            usages = tuple(Usage(**each) for each in found.pop("usages"))
            return cls(**found, usages=usages)
        return None


def be_rank(
    story: Script, rank: int, store: str, folder: Path, stage: Callable[[int], None]
) -> Verdict:
    """Plays the script in this process; does not raise."""
    try:
        usages = _play(story, rank, store, stage)
    except BaseException as error:
        found = Verdict(str(error), type(error).__name__, traceback.format_exc(), time.monotonic())
        found.write(folder / f"verdict.{rank}")  # before others hear of this rank's end
        return found
    return Verdict(usages=usages)


def _play(story: Script, rank: int, store: str, stage: Callable[[int], None]) -> tuple[Usage, ...]:
    if story.plan.laps > 1:
        keep_nothing_back()
    before = usage()
    player = Player(story, rank, ringcoll.init(rank, story.plan.size, store), stage)
    player.play()
    world = player.world
    world.barrier()
    world.close()
    ringcoll.shutdown()
    left = settles(before)
    if left:
        raise Wrong(f"left behind by a communicator that was closed: {left}")
    check_growth(player.usages)
    return tuple(player.usages)


def check_growth(usages: list[Usage], ranks: int = 1) -> None:
    """Of a process with so many. The first lap warms up; what has grown in each lap after it would
    grow for ever, for all laps do the same. What grows in some of them had not been used before:
    how much is in use at once depends on who is faster. In each of two that happens once in some
    hundred jobs with ranks that are stopped, so more laps are played."""
    if len(usages) < 3:
        return
    least = Usage.least(now.since(then) for then, now in pairwise(usages[1:]))
    grown = least.above(MOST_OF_A_LAP.times(ranks))
    if grown:
        raise Wrong(f"each lap does the same, and leaves more than before: {grown}")


def prepare(env: Mapping[str, str], log: Path) -> None:
    """A process for itself: its own output, no handlers of the parent's, stacks on SIGUSR1."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.close(output)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    os.environ.update(env)
    os.chdir(log.parent)
