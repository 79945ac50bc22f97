"""Trains a click model, whose embeddings are most of it, on several ranks.

    horovodrun -np 2 python examples/parameters/click_model.py --rows 10000000 --way tables
    horovodrun -np 2 python examples/parameters/click_model.py --rows 1000000

With ``--way tables`` the rows of the embedding live in a parameter table, which all ranks serve: a
step pulls and pushes the rows of its batch. The dense layers are averaged by Horovod. With ``--way
allreduce`` each rank has the whole embedding, and Horovod averages all of its gradient. Both are
the same model on the same data, and compute the same steps. Each prints a line of JSON: the loss,
what a step took, and what each rank's memory grew by.
"""

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import horovod.torch as hvd
import torch
from torch import nn
from torch.nn import functional

import ringcoll
from ringcoll import rules
from ringcoll.tables.torch import Embedding

FIELDS = 8  # of an impression: the user, the page, ...
LR = 0.05


class Impressions:
    """Endless impressions, each with an id in each field, and whether it was clicked. Few ids are
    frequent, and most are rare. Equal seeds give equal impressions."""

    def __init__(self, rows: int, seed: int) -> None:
        self._each = rows // FIELDS
        self._random = torch.Generator().manual_seed(seed)

    def batch(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids of [size, FIELDS], and clicks."""
        skewed = torch.rand(size, FIELDS, generator=self._random, dtype=torch.float64) ** 4
        ids = (skewed * self._each).long() + torch.arange(FIELDS) * self._each
        liking = torch.sin(ids.double() * 12.9898).sum(1)  # what the model is to find out
        clicks = torch.rand(size, generator=self._random) < torch.sigmoid(2 * liking)
        return ids, clicks.float()


class Clicks(nn.Module):
    """The rows of all fields, one after another, and dense layers on top."""

    def __init__(self, embedding: nn.Module, width: int) -> None:
        super().__init__()
        self.embedding = embedding
        torch.manual_seed(7)  # the dense layers begin alike, whatever the embedding is
        self.dense = nn.Sequential(nn.Linear(FIELDS * width, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.dense(self.embedding(ids).flatten(1)).squeeze(1)


def average(parameters: list[nn.Parameter], named: nn.Module) -> hvd.DistributedOptimizer:
    """Adagrad for gradients that Horovod averages."""
    names = {parameter: name for name, parameter in named.named_parameters()}
    mine = [(names[parameter], parameter) for parameter in parameters]
    return hvd.DistributedOptimizer(torch.optim.Adagrad(parameters, lr=LR), named_parameters=mine)


def with_tables(
    store: ringcoll.Store, options: argparse.Namespace
) -> tuple[nn.Module, Callable[[torch.Tensor | None], None]]:
    """The model, and what updates it. That is also given the ids of the next batch."""
    table = store.table("clicks", row_shape=options.width, rule=rules.Adagrad(lr=LR), staleness=0)
    embedding = Embedding(table)
    net = Clicks(embedding, options.width)
    optimizer = average(list(net.dense.parameters()), net)

    def update(following: torch.Tensor | None) -> None:
        if following is not None:
            embedding.prefetch(following)
        embedding.step(scale=1 / hvd.size())
        optimizer.step()  # meanwhile the rows of the next batch are on their way
        optimizer.zero_grad()

    return net, update


def with_allreduce(
    store: ringcoll.Store, options: argparse.Namespace
) -> tuple[nn.Module, Callable[[torch.Tensor | None], None]]:
    """The same, without a table."""
    del store
    embedding = nn.Embedding(options.rows, options.width)
    nn.init.zeros_(embedding.weight)
    net = Clicks(embedding, options.width)
    optimizer = average(list(net.parameters()), net)

    def update(following: torch.Tensor | None) -> None:
        del following
        optimizer.step()
        optimizer.zero_grad()

    return net, update


WAYS = {"tables": with_tables, "allreduce": with_allreduce}


def memory() -> int:
    """Bytes of memory that this process uses, shared memory included."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def train(way: str, store: ringcoll.Store, options: argparse.Namespace) -> dict[str, object]:
    gc.collect()
    before = most = memory()
    net, update = WAYS[way](store, options)
    hvd.broadcast_parameters(dict(net.dense.named_parameters()), root_rank=0)
    data = Impressions(options.rows, seed=1 + hvd.rank())
    ids, clicks = data.batch(options.batch)
    losses, times = [], []
    for step in range(options.steps):
        following, next_clicks = data.batch(options.batch)
        start = time.perf_counter()
        loss = functional.binary_cross_entropy_with_logits(net(ids), clicks)
        loss.backward()
        update(following if step + 1 < options.steps else None)
        times.append(time.perf_counter() - start)
        losses.append(loss.item())
        most = max(most, memory())
        ids, clicks = following, next_clicks

    def over_ranks(value: float) -> float:
        return hvd.allreduce(torch.tensor(value), name=f"result-{way}").item()

    tenth = max(1, options.steps // 10)
    result = {"way": way, "ranks": hvd.size(), "rows": options.rows, "steps": options.steps}
    result |= {"first_loss": over_ranks(statistics.mean(losses[:tenth]))}
    result |= {"loss": over_ranks(statistics.mean(losses[-tenth:]))}
    result |= {"step_ms": round(1e3 * statistics.median(times), 2)}
    return result | {"memory_mib": round(over_ranks((most - before) / 2**20), 1)}


def warm_up() -> None:
    """What the first passes of any model take, of time and memory, is no way's."""
    net = Clicks(nn.Embedding(FIELDS, 4), 4)
    net(torch.arange(FIELDS).unsqueeze(0)).sum().backward()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--way", choices=[*WAYS, "both"], default="both")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of all embeddings")
    parser.add_argument("--width", type=int, default=16, help="of a row")
    parser.add_argument("--batch", type=int, default=256, help="impressions a rank and step")
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warm_up()
    hvd.init()
    ways = list(WAYS) if options.way == "both" else [options.way]
    with ringcoll.init() as world, ringcoll.Store("clicks", world, key="an example") as store:
        for way in ways:
            result = train(way, store, options)
            if hvd.rank() == 0:
                print(json.dumps(result), flush=True)
        world.barrier()
    hvd.shutdown()


if __name__ == "__main__":
    main()
