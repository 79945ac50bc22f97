"""Many lives of Horovod in one process, each with the same process sets, and some that come and go.

Arguments: the folder for the results, and the framework, or both.
"""

import importlib
import sys

import results

modules = [importlib.import_module(f"horovod.{name}") for name in sys.argv[2].split(",")]
LIVES = 12


def one_of(hvd, value):
    if hvd.__name__.endswith("torch"):
        import torch

        return torch.tensor([value])
    import tensorflow as tf

    return tf.constant([value])


def total(hvd, process_set, name):
    mine = one_of(hvd, hvd.rank() + 1.0)
    return float(hvd.allreduce(mine, op=hvd.Sum, name=name, process_set=process_set)[0])


sums = []
for life in range(LIVES):
    of_init = [hvd.ProcessSet([0, 2]) for hvd in modules]
    # The frameworks begin and end in another order from life to life.
    pairs = list(zip(modules, of_init, strict=True))[:: 1 if life % 2 else -1]
    for hvd, ends in pairs:
        hvd.init(process_sets=[ends])
    for hvd, ends in pairs:
        sums.append(total(hvd, hvd.global_process_set, "all"))
        if ends.included():
            sums.append(total(hvd, ends, "ends"))
        # Of two frameworks, Python's add_process_set() is that of the one that began last.
        for _ in range(2 if len(modules) == 1 else 0):
            pair = hvd.add_process_set([0, 1])
            if pair.included():
                sums.append(total(hvd, pair, "pair"))
            total(hvd, hvd.global_process_set, "used")  # a set goes when all have used it
            assert hvd.remove_process_set(pair)
    rank = modules[0].rank()
    for hvd, _ in pairs:
        total(hvd, hvd.global_process_set, "end")
        hvd.shutdown()
results.write(rank, sums=sums)
