"""An inference process that always has the newest weights of a training that goes on.

    export RINGCOLL_KEY=...    # the key of the trainer
    python examples/weights/follow_weights.py ringcoll://10.0.0.5:4711/weights

The address is what train_transformer.py prints. Start as many followers as you like, when you like.
They may end or be killed at any time: neither the training nor other followers notice.
"""

import argparse
import os
from concurrent.futures import ThreadPoolExecutor

import torch
from letters import Text, Transformer, digest, loss_of, next_letter

import ringcoll


def follow(store: ringcoll.Store, reader: ThreadPoolExecutor, patience: float) -> None:
    net = Transformer().eval()
    weights = net.state_dict()
    whole = 0
    have = None  # the version of these weights
    text = " "
    held_out = Text(seed=0).batch(32)
    for version in store.watch(timeout=patience, after=0):
        if have is None:
            dtype, _ = store.names()["head.weight"]
            weights = net.to(getattr(torch, dtype)).state_dict()
            whole = sum(tensor.nbytes for tensor in weights.values())
        elif version <= have:
            continue  # the last update was newer than the version that was announced

        # What has changed is read in the background: inference goes on with the old weights.
        reading = reader.submit(store.prepare, since=have, out=weights)
        while not reading.done():
            text += next_letter(net, text)
        update = reading.result()
        update.apply()  # copies in memory
        have = update.version

        with torch.no_grad():
            loss = loss_of(net, *held_out).item()
        print(
            f"version {have}, step {update.metadata['step']}: loss {loss:.4f}, read {update.bytes} "
            f"of {whole} bytes, {update.deltas} deltas, digest {digest(weights)}",
            flush=True,
        )
        while len(text) < 60:
            text += next_letter(net, text)
        print(f"    {text}", flush=True)
        text = " "


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("address", help="ringcoll://host:port/weights")
    parser.add_argument("--patience", type=float, default=20, help="end after seconds without news")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with (
        ringcoll.connect(options.address, key=os.environ["RINGCOLL_KEY"]) as guest,
        ringcoll.Store("weights", guest, timeout=options.patience) as store,
        ThreadPoolExecutor(1) as reader,
    ):
        try:
            follow(store, reader, options.patience)
        except ringcoll.Error as error:
            print(f"the weights cannot be read any more: {error}")


if __name__ == "__main__":
    main()
