"""Ranks as threads of one process, over the software RDMA device of the C++ tests.

The process is started with a library in LD_PRELOAD that has the device in it, and that the package
ringcoll then uses in place of its own: ``python -m support.soak.fake FOLDER``.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time
import traceback
from dataclasses import asdict
from pathlib import Path

import ringcoll
from ringcoll import _core
from support.soak.generate import generate
from support.soak.play import Player
from support.soak.rank import Verdict, check_growth, prepare
from support.soak.script import Plan, Script
from support.soak.stages import Stages
from support.soak.usage import keep_nothing_back
from support.stages import ROOT

LIBRARY = ROOT / "build" / "dev" / "libsoak_fake.so"


def missing() -> str:
    """Why it cannot be used; empty if it can."""
    if LIBRARY.exists():
        return ""
    return (
        f"there is no {LIBRARY.relative_to(ROOT)}: cmake --preset dev && "
        "cmake --build --preset dev --target soak_fake"
    )


def exec_all(plan: Plan, folder: Path) -> None:
    """Becomes the process whose threads are the ranks."""
    (folder / "plan").write_text(json.dumps(asdict(plan)))
    env = {
        **os.environ,
        "LD_PRELOAD": str(LIBRARY),
        "PYTHONPATH": str(ROOT / "ci"),
        "PYTHONSAFEPATH": "1",
    }
    os.execve(sys.executable, [sys.executable, "-m", __name__, str(folder)], env)


def main(folder: Path) -> int:
    story = generate(Plan(**json.loads((folder / "plan").read_text())))
    prepare({}, folder / "output.0")
    if story.plan.laps > 1:
        keep_nothing_back()
    device = ctypes.CDLL(None)
    device.ringcoll_soak_begin()
    stages = Stages(folder / "stages", story.plan.size)
    threads = [
        threading.Thread(target=_be_rank, args=(story, rank, folder, stages))
        for rank in range(story.plan.size)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if story.plan.size > 1 and not device.ringcoll_soak_bytes():
        print("the device was not used")
        return 1
    return 1 if device.ringcoll_soak_end() else 0


def _be_rank(story: Script, rank: int, folder: Path, stages: Stages) -> None:
    path = folder / f"verdict.{rank}"
    try:
        core = _core.Comm(rank, story.plan.size, "local://soak", "world", 0.0)
        world = ringcoll.Communicator(core, "world")
        player = Player(story, rank, world, lambda at: stages.put(rank, at))
        player.play()
        world.barrier()
        world.close()
        if rank == 0:  # what the process holds is that of all of them
            check_growth(player.usages, story.plan.size)
    except BaseException as error:
        trace = traceback.format_exc()
        Verdict(str(error), type(error).__name__, trace, time.monotonic()).write(path)
        world.close()  # so that the others hear of it, as of a process that ends
        return
    Verdict(usages=tuple(player.usages)).write(path)


if __name__ == "__main__":
    status = main(Path(sys.argv[1]))
    sys.stdout.flush()
    os._exit(status)
