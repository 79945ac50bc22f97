"""Trains scikit-learn's digits on ranks of unequal speed, without that the fast ones wait.

    torchrun --standalone --nproc-per-node 3 examples/parameters/async_digits.py

The weights are one parameter table, which all ranks serve. Each step of a rank pulls them, and
pushes its gradient; the servers do the optimizer's step. The table's staleness says who waits:

    0      all ranks at each step, as with an allreduce
    2      a rank that is 2 steps ahead of the slowest: pauses that come now and then cost less
    none   nobody, and a fast rank does more of the work

Ranks get slower by ``--pause``, a mean that differs between them. For each staleness rank 0 prints
a line of JSON: seconds, the steps of each rank, how far the fastest was ahead, and the accuracy.
"""

import argparse
import json
import time

import numpy
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

import ringcoll
from ringcoll import rules


def load() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images and labels to train with, then to test with: every fifth image."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16
    labels = torch.tensor(digits.target)
    held_back = torch.arange(len(labels)) % 5 == 0
    return images[~held_back], labels[~held_back], images[held_back], labels[held_back]


class Worker:
    """One rank, with a copy of the net whose weights are those of a table."""

    def __init__(self, world: ringcoll.Communicator, store: ringcoll.Store, staleness: str) -> None:
        self.world, self.name = world, f"digits-{staleness}"
        torch.manual_seed(7)
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        self.flat = nn.utils.parameters_to_vector(self.net.parameters()).detach()
        clocks = None if staleness == "none" else int(staleness)
        # The table has what is to be added to the weights of the beginning, which all ranks know.
        shape, rule = len(self.flat), rules.SGD(lr=0.05, momentum=0.5)
        self.table = store.table(self.name, shape, rule=rule, staleness=clocks)
        self.steps = store.table(f"{self.name}-steps", world.size, dtype="int64")
        self.change = torch.empty_like(self.flat)
        self.gradient = torch.empty_like(self.flat)

    def pull(self) -> None:
        self.table.pull(out=self.change)
        nn.utils.vector_to_parameters(self.flat + self.change, self.net.parameters())

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> numpy.ndarray:
        """One step. Returns how many each rank has done."""
        self.pull()
        self.net.zero_grad()
        functional.cross_entropy(self.net(images), labels).backward()
        gradients = [parameter.grad.reshape(-1) for parameter in self.net.parameters()]
        torch.cat(gradients, out=self.gradient)
        self.table.push(None, self.gradient / self.world.size)
        if self.table.clock is not None:
            self.table.tick()
        one = numpy.zeros(self.world.size, numpy.int64)
        one[self.world.rank] = 1
        return self.steps.push_pull(None, one)


def train(
    world: ringcoll.Communicator,
    store: ringcoll.Store,
    staleness: str,
    options: argparse.Namespace,
) -> dict[str, object]:
    worker = Worker(world, store, staleness)
    images, labels, test_images, test_labels = load()
    random = numpy.random.default_rng(world.rank)
    done = numpy.zeros(world.size, numpy.int64)
    ahead = 0
    world.barrier()
    start = time.perf_counter()
    # Who has clocks does its share: the others wait for it. Without them, all do what is left.
    while (
        done.sum() < options.steps * world.size
        if worker.table.clock is None
        else done[world.rank] < options.steps
    ):
        time.sleep(options.pause * random.exponential(world.rank + 1) / world.size)
        batch = torch.from_numpy(random.integers(0, len(labels), options.batch))
        done = worker.step(images[batch], labels[batch])
        ahead = max(ahead, int(done[world.rank] - done.min()))
    world.barrier()
    seconds = time.perf_counter() - start
    worker.pull()
    right = (worker.net(test_images).argmax(1) == test_labels).float().mean().item()
    most_ahead = int(world.allreduce(numpy.array([ahead]), op="max")[0])
    return {
        "staleness": staleness,
        "seconds": round(seconds, 2),
        "steps": worker.steps.pull().tolist(),
        "ahead": most_ahead,
        "accuracy": round(right, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400, help="of a rank, on the average")
    parser.add_argument("--batch", type=int, default=32, help="images a step")
    parser.add_argument("--pause", type=float, default=0.01, help="seconds, of the slowest rank")
    parser.add_argument("--staleness", nargs="+", default=["0", "2", "none"], metavar="K")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with ringcoll.init() as world, ringcoll.Store("digits", world, key="an example") as store:
        for staleness in options.staleness:
            result = train(world, store, staleness, options)
            if world.rank == 0:
                print(json.dumps(result), flush=True)
        world.barrier()


if __name__ == "__main__":
    main()
