"""One rank of a Horovod job that averages gradients: horovod_allreduce.py <harness socket>

Started by horovodrun. It is a training script as far as Horovod can tell: it submits a step's
gradients one by one as backpropagation would, in place, and waits for all of them.
`run <case> <steps> 1` is its command; a case is `resnet50:<classes>` or a number of bytes, or
`computing:` and one of these.

A step begins after a random pause, the same on all ranks, so that it meets Horovod's cycles at
every phase. One after another they would all meet the same. In the pause a rank sleeps, as one that
waits for its data does, and processors with it; or it computes.
"""

from __future__ import annotations

import math
import random
import sys
import time
from pathlib import Path

import horovod.torch as hvd
import torch
from bench import Harness, times_line

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "harness"))
import resnet50

LONGEST_PAUSE_S = 2e-3  # two cycles of Horovod's default
COMPUTING = "computing:"
UNTIMED_STEPS = 2  # after another job was measured, and for Horovod to cache the responses


class Rank:
    def __init__(self) -> None:
        self._case = ""
        self._gradients: list[tuple[str, torch.Tensor]] = []
        self._random = random.Random(1)

    def run(self, arguments: list[str]) -> str:
        case, steps = arguments[0], int(arguments[1])
        if case != self._case:
            self._prepare(case)
        for _ in range(UNTIMED_STEPS):
            self._step()
        seconds = []
        for _ in range(steps):
            self._pause(self._random.uniform(0, LONGEST_PAUSE_S))
            start = time.perf_counter()
            self._step()
            seconds.append(time.perf_counter() - start)
        return times_line(seconds)

    def _pause(self, seconds: float) -> None:
        if not self._case.startswith(COMPUTING):
            time.sleep(seconds)
            return
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass

    def _prepare(self, case: str) -> None:
        """Fills the gradients, averages them once, and compares every element."""
        shapes = shapes_of(case)
        tensors = [pattern(shape) * (hvd.rank() + 1) for shape in shapes]
        names = [f"{case}.{i}" for i in range(len(shapes))]
        self._case = case
        self._gradients = list(zip(names, tensors, strict=True))
        self._step()
        mean = (hvd.size() + 1) / 2
        for name, gradient in self._gradients:
            if not torch.equal(gradient, pattern(gradient.shape) * mean):
                raise ValueError(f"rank {hvd.rank()}: {name} is not the average")

    def _step(self) -> None:
        handles = [
            hvd.allreduce_async_(gradient, name=name, op=hvd.Average)
            for name, gradient in reversed(self._gradients)
        ]
        for handle in handles:
            hvd.synchronize(handle)


def shapes_of(case: str) -> list[resnet50.Shape]:
    case = case.removeprefix(COMPUTING)
    if case.startswith("resnet50:"):
        return resnet50.gradient_shapes(int(case.partition(":")[2]))
    return [(int(case) // 4,)]


def pattern(shape: resnet50.Shape | torch.Size) -> torch.Tensor:
    """Small whole numbers: their average over any number of ranks is exact in float32."""
    return (torch.arange(math.prod(shape)) % 17 * 2).float().reshape(shape)


def main() -> None:
    torch.set_num_threads(1)
    hvd.init()
    Harness(sys.argv[1], hvd.rank()).serve({"run": Rank().run})
    hvd.shutdown()


if __name__ == "__main__":
    main()
