"""One rank of a Horovod job that trains: horovod_training.py <harness socket>

Started by horovodrun. A step is a real one: forward, backward, gradients averaged by
DistributedOptimizer, weights changed; torch has a thread for each core in every rank, as it does by
default. `run <case> <steps> 1` is its command; cases are below.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import horovod.torch as hvd
import torch
from bench import Harness, times_line
from torch import nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "harness"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "examples"))
import resnet50
import train_digits_torch as digits

SQUARE = 512  # of the matrices that rank 0 multiplies while others wait
PRODUCTS = 16

Step = Callable[[], object]


def trainer(net: nn.Module, name: str) -> torch.optim.Optimizer:
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    named = [(f"{name}.{key}", value) for key, value in net.named_parameters()]
    return hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.01), named)


def digits_step() -> Step:
    """The example's net and batch."""
    images, labels, _, _ = digits.load()
    mine = slice(32 * hvd.rank(), 32 * hvd.rank() + 32)
    net = digits.make_net()
    optimizer = trainer(net, "digits")
    return lambda: digits.train_step(net, optimizer, images[mine], labels[mine])


def convolution(before: int, after: int, kernel: int, stride: int = 1) -> nn.Module:
    own = nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(own, nn.BatchNorm2d(after))


class Bottleneck(nn.Module):
    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = width * resnet50.EXPANSION
        self.inner = nn.Sequential(
            *(convolution(before, width, 1), nn.ReLU()),
            *(convolution(width, width, 3, stride), nn.ReLU()),
            convolution(width, after, 1),
        )
        same = stride == 1 and before == after
        self.around = nn.Identity() if same else convolution(before, after, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.inner(x) + self.around(x))


def resnet(classes: int) -> nn.Module:
    """The layers whose gradients harness/resnet50.py has the shapes of."""
    layers = [convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for stage, (width, blocks) in enumerate(resnet50.STAGES):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(Bottleneck(channels, width, stride))
            channels = width * resnet50.EXPANSION
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]
    return nn.Sequential(*layers, *head)


def resnet50_step() -> Step:
    """Two pictures of 64 x 64 pixels a rank: little to compute for so many gradients."""
    net = resnet(10)
    wanted = sorted(resnet50.gradient_shapes(10))
    if sorted(tuple(p.shape) for p in net.parameters()) != wanted:
        raise ValueError("this is not the ResNet-50 whose gradients are told of")
    optimizer = trainer(net, "resnet50")
    images, labels = torch.rand(2, 3, 64, 64), torch.tensor([1, 2])

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(net(images), labels).backward()
        optimizer.step()

    return step


def waiting_step() -> Step:
    """Rank 0 computes on all cores, and the others wait for it."""
    square, one = torch.rand(SQUARE, SQUARE), torch.ones(1)

    def step() -> None:
        if hvd.rank() == 0:
            for _ in range(PRODUCTS):
                square @ square
        hvd.allreduce(one, op=hvd.Sum, name="waiting")

    return step


def alone_step() -> Step:
    """The same while nobody waits: the others sleep, and are not asked."""
    square = torch.rand(SQUARE, SQUARE)

    def step() -> None:
        if hvd.rank() == 0:
            for _ in range(PRODUCTS):
                square @ square

    return step


CASES: dict[str, Callable[[], Step]] = {
    "digits": digits_step,
    "resnet50": resnet50_step,
    "waiting": waiting_step,
    "alone": alone_step,
}


class Rank:
    def __init__(self) -> None:
        self._steps: dict[str, Step] = {}

    def run(self, arguments: list[str]) -> str:
        case, steps = arguments[0], int(arguments[1])
        if case not in self._steps:
            torch.manual_seed(1)
            self._steps[case] = CASES[case]()
        step = self._steps[case]
        seconds = []
        for _ in range(steps):
            start = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - start)
        return times_line(seconds)


def main() -> None:
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    hvd.init()
    Harness(sys.argv[1], hvd.rank()).serve({"run": Rank().run})
    hvd.shutdown()


if __name__ == "__main__":
    main()
