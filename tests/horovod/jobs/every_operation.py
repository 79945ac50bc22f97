"""Every operation × type × shape × process set; the results of each rank go into one npz file.

Values are small whole numbers, so that sums and products are exact in every type, float16 included.
Operations are submitted many at a time: Horovod fuses what it can, and one batch takes few rounds.
"""

import itertools
import sys
from pathlib import Path

import horovod.torch as hvd
import numpy as np
import torch

REDUCED = [torch.int32, torch.int64, torch.float16, torch.float32, torch.float64]
MOVED = [*REDUCED, torch.uint8, torch.int8]
SHAPES = {"empty": (0,), "scalar": (), "one": (1,), "odd": (7, 3), "prime": (10007,)}
OPS = ("Sum", "Average", "Min", "Max", "Product")

pair, ends = hvd.ProcessSet([0, 1]), hvd.ProcessSet([0, 2])
hvd.init(process_sets=[pair, ends])
rank = hvd.rank()
SETS = {"world": hvd.global_process_set, "pair": pair, "ends": ends}
results = {}
pending = {}


def values(shape, dtype, seed):
    """Whole numbers from -2 to 2 (0 and 1 for unsigned types), different on every rank."""
    generator = torch.Generator().manual_seed(seed * 10 + rank)
    numbers = torch.randint(-2, 3, shape, generator=generator)
    if dtype == torch.uint8:
        numbers = numbers.clamp(0, 1)
    return numbers.to(dtype)


def keep(case, tensor):
    assert case not in results, case
    results[case] = tensor.detach().numpy().copy()


def collect():
    """Waits for everything that was submitted."""
    for case, handle in pending.items():
        found = hvd.synchronize(handle)
        for i, tensor in enumerate([found] if torch.is_tensor(found) else found):
            keep(f"{case} {i}", tensor)
    pending.clear()


def reductions(name, process_set):
    for seed, (op, dtype) in enumerate(itertools.product(OPS, REDUCED)):
        for shape_name, shape in SHAPES.items():
            case = f"allreduce {op.lower()} {dtype} {shape_name} {name}"
            given = values(shape, dtype, seed)
            keep(f"{case} input", given)
            pending[case] = hvd.allreduce_async(
                given, op=getattr(hvd, op), name=case, process_set=process_set
            )
        collect()
    for dtype, shape in itertools.product(REDUCED, SHAPES.values()):
        case = f"allreduce in place {dtype} {shape} {name}"
        given = values(shape, dtype, 5)
        again = hvd.allreduce_async_(given, op=hvd.Sum, name=case, process_set=process_set)
        assert hvd.synchronize(again).data_ptr() == given.data_ptr()
        keep(case, given)
    for dtype, (before, after) in itertools.product(
        (torch.float16, torch.float32, torch.float64),
        ((0.5, 1.0), (1.0, 0.25), (4.0, 0.5), (0.0, 1.0), (1.0, 0.0)),
    ):
        case = f"allreduce scaled {dtype} {before} {after} {name}"
        pending[case] = hvd.allreduce_async(
            values((1001,), dtype, 7),
            op=hvd.Sum,
            name=case,
            prescale_factor=before,
            postscale_factor=after,
            process_set=process_set,
        )
    collect()
    for dtype in (torch.float16, torch.float32):
        case = f"allreduce large {dtype} {name}"
        large = values((1 << 21,), dtype, 3)
        keep(case, hvd.allreduce(large, op=hvd.Sum, name=case, process_set=process_set))
    many = [values((3 + 17 * i,), torch.float32, i) for i in range(40)]
    case = f"grouped allreduce {name}"
    pending[case] = hvd.grouped_allreduce_async(
        many, op=hvd.Sum, name=case, process_set=process_set
    )
    collect()


def movements(name, process_set):
    me, size = process_set.rank(), process_set.size()
    for seed, dtype in enumerate(MOVED):
        for label, first, rest in (
            ("empty", 0, ()),
            ("one", 1, ()),
            ("uneven", me, (3,)),
            ("odd", 1000 + me, (7,)),
        ):
            case = f"allgather {dtype} {label} {name}"
            given = values((first, *rest), dtype, seed)
            pending[case] = hvd.allgather_async(given, name=case, process_set=process_set)
        case = f"grouped allgather {dtype} {name}"
        group = [values((2 + i + me, 3), dtype, i) for i in range(4)]
        pending[case] = hvd.grouped_allgather_async(group, name=case, process_set=process_set)
        for root, (shape_name, shape) in itertools.product(range(size), SHAPES.items()):
            case = f"broadcast {dtype} {shape_name} {root} {name}"
            given = values(shape, dtype, seed)
            # The root is named by its global rank.
            sender = process_set.ranks[root]
            pending[case] = hvd.broadcast_async(given, sender, case, process_set)
            case += " in place"
            pending[case] = hvd.broadcast_async_(given.clone(), sender, case, process_set)
        for per_peer in (0, 1, 100):
            case = f"alltoall {dtype} {per_peer} {name}"
            splits = torch.tensor(
                [per_peer + (me + peer) % 2 for peer in range(size)], dtype=torch.int32
            )
            given = values((int(splits.sum()), 2), dtype, seed)
            pending[case] = hvd.alltoall_async(given, splits, name=case, process_set=process_set)
        collect()


def scatters(name, process_set):
    shapes = ((process_set.size(),), (7, 3), (10007,), (1 << 13, 4))
    for seed, (dtype, shape, op) in enumerate(
        itertools.product(REDUCED, shapes, ("Sum", "Average"))
    ):
        case = f"reducescatter {op.lower()} {dtype} {shape} {name}"
        pending[case] = hvd.reducescatter_async(
            values(shape, dtype, seed), name=case, op=getattr(hvd, op), process_set=process_set
        )
    case = f"grouped reducescatter {name}"
    group = [values((5 + i, 2), torch.float32, i) for i in range(4)]
    pending[case] = hvd.grouped_reducescatter_async(
        group, name=case, op=hvd.Sum, process_set=process_set
    )
    collect()


for name, process_set in SETS.items():
    if process_set.included():
        reductions(name, process_set)
        movements(name, process_set)
        scatters(name, process_set)
hvd.barrier()
for step in range(3 - rank):
    keep(f"join {step}", hvd.allreduce(torch.full((11,), rank + 1.0), op=hvd.Sum, name=f"j{step}"))
results["last joined"] = np.array(hvd.join())
np.savez(Path(sys.argv[1]) / f"rank{rank}.npz", **results)
