"""Trains the small transformer of examples/weights by DiLoCo, on hosts with a slow network.

    torchrun --standalone --nproc-per-node 2 examples/parameters/diloco.py
    torchrun --standalone --nproc-per-node 2 examples/parameters/diloco.py --way allreduce

With ``--way diloco`` each rank does ``--every`` steps alone, and then pushes how far its weights
have moved to a parameter table, which all ranks serve. With ``--way allreduce`` the ranks average
their gradients at every step. Each prints a line of JSON: the loss on sentences that were held
out, seconds, those of them that were spent on exchanges, and how often there was one.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import ringcoll
from ringcoll.tables.torch import OuterOptimizer

sys.path.append(str(Path(__file__).parents[1] / "weights"))
from letters import Text, Transformer, digest, loss_of

Step = Callable[[torch.optim.Optimizer], bool]  # True if the ranks have exchanged something


def by_diloco(
    net: nn.Module, world: ringcoll.Communicator, store: ringcoll.Store, options: argparse.Namespace
) -> Step:
    del world
    staleness = None if options.staleness == "none" else int(options.staleness)
    outer = OuterOptimizer(
        store, "outer", net.parameters(), options.every, options.outer_lr, staleness=staleness
    )

    def step(optimizer: torch.optim.Optimizer) -> bool:
        optimizer.step()
        return outer.step()

    return step


def by_allreduce(
    net: nn.Module, world: ringcoll.Communicator, store: ringcoll.Store, options: argparse.Namespace
) -> Step:
    del store, options
    parameters = list(net.parameters())
    flat = torch.empty(sum(parameter.numel() for parameter in parameters))

    def step(optimizer: torch.optim.Optimizer) -> bool:
        torch.cat([parameter.grad.reshape(-1) for parameter in parameters], out=flat)
        world.allreduce(flat, op="average", out=flat)
        nn.utils.vector_to_parameters(flat, [parameter.grad for parameter in parameters])
        optimizer.step()
        return True

    return step


WAYS = {"diloco": by_diloco, "allreduce": by_allreduce}


def train(
    way: str, world: ringcoll.Communicator, store: ringcoll.Store, options: argparse.Namespace
) -> dict[str, object]:
    torch.manual_seed(1)
    net = Transformer(width=options.width)
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3, weight_decay=0)
    step = WAYS[way](net, world, store, options)
    text, held_out = Text(seed=1 + world.rank), Text(seed=0).batch(64)
    exchanges, exchanging = 0, 0.0
    world.barrier()
    start = time.perf_counter()
    for _ in range(options.steps):
        optimizer.zero_grad()
        loss_of(net, *text.batch(options.batch)).backward()
        before = time.perf_counter()
        if step(optimizer):
            exchanges += 1
            exchanging += time.perf_counter() - before
    world.barrier()
    seconds = time.perf_counter() - start
    with torch.no_grad():
        loss = loss_of(net, *held_out).item()
    return {
        "way": way,
        "ranks": world.size,
        "steps": options.steps,
        "loss": round(loss, 4),
        "seconds": round(seconds, 2),
        "exchanging_s": round(exchanging, 3),
        "exchanges": exchanges,
        "exchange_bytes": 4 * sum(parameter.numel() for parameter in net.parameters()),
        "digests": len(set(world_digests(world, net))),
    }


def world_digests(world: ringcoll.Communicator, net: nn.Module) -> list[str]:
    """The digest of each rank's weights."""
    mine = torch.frombuffer(bytearray(digest(net.state_dict()).encode()), dtype=torch.uint8)
    return [bytes(row).decode() for row in world.allgather(mine.reshape(1, -1))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--way", choices=[*WAYS, "both"], default="both")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--every", type=int, default=20, help="inner steps of an outer one")
    parser.add_argument("--outer-lr", type=float, default=0.7)
    parser.add_argument("--staleness", default="0", help="of the table: 0, k or none")
    parser.add_argument("--batch", type=int, default=16, help="sentences a rank and step")
    parser.add_argument("--width", type=int, default=64, help="of the transformer")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with ringcoll.init() as world, ringcoll.Store("diloco", world, key="an example") as store:
        for way in list(WAYS) if options.way == "both" else [options.way]:
            result = train(way, world, store, options)
            if world.rank == 0:
                print(json.dumps(result), flush=True)
        world.barrier()


if __name__ == "__main__":
    main()
