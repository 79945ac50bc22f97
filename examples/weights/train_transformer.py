"""Trains a small transformer on several ranks, and publishes its weights while it goes on.

    export RINGCOLL_KEY=$(openssl rand -hex 16)    # whoever knows it may read the weights
    torchrun --standalone --nproc-per-node 2 examples/weights/train_transformer.py
    python examples/weights/follow_weights.py ringcoll://...    # the address that it prints
    ringcoll store ls ringcoll://...

The training is torch's own: DistributedDataParallel over gloo. Every 20 steps all ranks commit the
weights to a store, which is in the memory of the ranks. Any number of followers read them there, on
any host and at any time. The training never waits for followers. SIGTERM, which batch systems send,
ends it after the next version.
"""

import argparse
import os
import signal
import time
from pathlib import Path

import numpy
import torch
from letters import Text, Transformer, digest, loss_of
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import ringcoll
from ringcoll.weights import Pending


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--every", type=int, default=20, help="steps from version to version")
    parser.add_argument("--decay", type=float, default=0.985, help="of the learning rate, a step")
    parser.add_argument("--dtype", default="bfloat16", help="of the published weights")
    parser.add_argument("--keep", type=int, default=2, help="versions that can be read")
    parser.add_argument("--path", help="also keep the versions as files in this folder")
    parser.add_argument("--address-file", type=Path, help="write the address for followers here")
    parser.add_argument("--stay", type=float, default=10, help="seconds, after the last version")
    return parser.parse_args()


class Publisher:
    """Commits the weights. One commit is under way at a time."""

    def __init__(self, store: ringcoll.Store, dtype: torch.dtype) -> None:
        self._store, self._dtype = store, dtype
        self._pending: Pending | None = None
        self._what = ""

    def publish(self, net: torch.nn.Module, step: int, loss: float) -> None:
        """Starts to commit the weights, as they are now."""
        self.finish()
        # This is a copy of each tensor if its type changes, and else the tensor itself.
        weights = {name: tensor.to(self._dtype) for name, tensor in net.state_dict().items()}
        self._store.put_state_dict(weights)
        self._pending = self._store.commit({"step": step, "loss": round(loss, 4)}, wait=False)
        self._what = f"step {step}: loss {loss:.4f}, digest {digest(weights)}"

    def copied(self) -> None:
        """Waits until the weights may be written."""
        if self._pending is not None:
            self._pending.copied()

    def finish(self) -> None:
        """Waits until the version can be read."""
        if self._pending is not None:
            version = self._pending.wait()
            if distributed.get_rank() == 0:
                print(f"version {version}, {self._what}", flush=True)
        self._pending = None


def train(world: ringcoll.Communicator, publisher: Publisher, options: argparse.Namespace) -> None:
    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stop.append(number))
    torch.manual_seed(1)
    net = Transformer()
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3, weight_decay=0)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, options.decay)
    text = Text(seed=1 + world.rank)
    for step in range(1, options.steps + 1):
        optimizer.zero_grad()
        loss = loss_of(model, *text.batch(16))
        loss.backward()
        publisher.copied()  # it was copied while the two passes ran
        optimizer.step()
        schedule.step()
        if step % options.every == 0 or step == options.steps:
            publisher.publish(net, step, loss.item())
            if world.allreduce(numpy.array([len(stop)]), op="max")[0]:  # all ranks end together
                break
    publisher.finish()


def main() -> None:
    options = parse()
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    key = os.environ["RINGCOLL_KEY"]
    with ringcoll.init() as world:
        settings = {"key": key, "keep": options.keep, "path": options.path}
        with ringcoll.Store("weights", world, **settings) as store:
            if world.rank == 0:
                print(f"follow {store.address}", flush=True)
                if options.address_file:
                    options.address_file.write_text(store.address)
            train(world, Publisher(store, getattr(torch, options.dtype)), options)
            time.sleep(options.stay)  # followers can still read the last version
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
