"""Trains a small convolutional net on scikit-learn's digits with Horovod and PyTorch.

    horovodrun -np 2 python examples/train_digits_torch.py

An ordinary Horovod script: it knows nothing of what carries its gradients. Rank 0 ends with a line
of JSON: accuracy, the weights' digest, and what a step and its allreduce took.
"""

import argparse
import hashlib
import json
import statistics
import time

import horovod.torch as hvd
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional


def make_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 512),
        nn.ReLU(),
        nn.Linear(512, 10),
    )


def load() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images and labels to train with, then to test with: every fifth image."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    held_back = torch.arange(len(labels)) % 5 == 0
    return images[~held_back], labels[~held_back], images[held_back], labels[held_back]


def train_step(net, optimizer, images, labels) -> tuple[float, float]:
    """One step; returns its seconds and those that it waited for the allreduce."""
    start = time.perf_counter()
    optimizer.zero_grad()
    functional.cross_entropy(net(images), labels).backward()
    waiting = time.perf_counter()
    optimizer.synchronize()
    waited = time.perf_counter() - waiting
    with optimizer.skip_synchronize():
        optimizer.step()
    return time.perf_counter() - start, waited


def accuracy(net, images, labels) -> float:
    """Over all ranks, each of which looks at its share."""
    mine = slice(hvd.rank(), None, hvd.size())
    with torch.no_grad():
        right = (net(images[mine]).argmax(1) == labels[mine]).sum()
    return hvd.allreduce(right, op=hvd.Sum, name="right").item() / len(labels)


def digest(net) -> str:
    """Of all weights: equal on two runs if every bit is."""
    data = b"".join(parameter.detach().numpy().tobytes() for parameter in net.parameters())
    return hashlib.sha256(data).hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch", type=int, default=32, help="images a rank and step")
    parser.add_argument("--images", type=int, help="train with so many of them, not with all")
    options = parser.parse_args()

    hvd.init()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(7)
    images, labels, test_images, test_labels = load()
    net = make_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=net.named_parameters())
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    times = []
    for _ in range(options.epochs):
        order = torch.randperm(len(labels))[: options.images]  # the same on all ranks, by the seed
        for batch in order.split(options.batch * hvd.size()):
            share = batch[hvd.rank() :: hvd.size()]
            if len(batch) == options.batch * hvd.size():
                times.append(train_step(net, optimizer, images[share], labels[share]))
    result = {
        "framework": "torch",
        "ranks": hvd.size(),
        "steps": len(times),
        "accuracy": accuracy(net, test_images, test_labels),
        "weights": digest(net),
        "gradient_bytes": sum(p.numel() * p.element_size() for p in net.parameters()),
        "step_ms": 1e3 * statistics.median(step for step, _ in times),
        "allreduce_ms": 1e3 * statistics.median(waited for _, waited in times),
    }
    if hvd.rank() == 0:
        print(json.dumps(result), flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
