"""Every operation of horovod.torch × type × shape × process set.

The job of three ranks, where halving and doubling has a remainder, has all types.
"""

import itertools

import horovod.torch as hvd
import numpy as np
import torch
from recording import Submitted, fractions, mine, whole_numbers

REDUCED = ("int32", "int64", "float16", "float32", "float64", "uint8", "int8")
MOVED = (*REDUCED, "int16", "bool")
SHAPES = {"empty": (0,), "scalar": (), "one": (1,), "odd": (7, 3), "prime": (10007,)}
OPS = ("Sum", "Average", "Min", "Max", "Product")
FLOATS = ("float16", "float32", "float64")
# Scales of the input and of the result. A zero means zero, and not "none".
SCALES = ((0.5, 1.0), (1.0, 0.25), (4.0, 0.5), (0.0, 1.0), (1.0, 0.0), (1 / 3, 3.0))


def tensor(shape, dtype, seed, make=whole_numbers):
    return torch.from_numpy(np.asarray(make(shape, dtype, seed, hvd.rank())))


class Theme:
    def __init__(self, record, name, process_set):
        self.record, self.name, self.process_set = record, name, process_set
        self.submitted = Submitted(record, hvd.synchronize)
        few = hvd.size() != 3 or name != "world"
        self.reduced = ("int32", "float16", "float32") if few else REDUCED
        self.moved = ("int64", "float16", "bool") if few else MOVED

    def submit(self, case, function, *arguments, **options):
        self.submitted.add(
            f"{case} {self.name}", function, *arguments, process_set=self.process_set, **options
        )

    def reductions(self):
        for seed, (op, dtype) in enumerate(itertools.product(OPS, self.reduced)):
            for shape_name, shape in SHAPES.items():
                given = tensor(shape, dtype, seed)
                case = f"allreduce {op.lower()} {dtype} {shape_name}"
                self.submit(case, hvd.allreduce_async, given, op=getattr(hvd, op))
            self.submitted.collect()
        for dtype, shape in itertools.product((*FLOATS, "int32", "int64"), SHAPES.values()):
            case = f"allreduce in place {dtype} {shape} {self.name}"
            given = tensor(shape, dtype, 5)
            options = {"op": hvd.Sum, "name": case, "process_set": self.process_set}
            result = hvd.synchronize(hvd.allreduce_async_(given, **options))
            assert result.data_ptr() == given.data_ptr()
            self.record.keep(case, given)
        for dtype, (before, after) in itertools.product((*FLOATS, "int32"), SCALES):
            self.submit(
                f"allreduce scaled {dtype} {before:.2f} {after}",
                hvd.allreduce_async,
                tensor((1001,), dtype, 7) * 12,
                op=hvd.Sum,
                prescale_factor=before,
                postscale_factor=after,
            )
        for op, dtype in itertools.product(OPS, FLOATS):
            given = tensor((4099,), dtype, 8, fractions)
            case = f"allreduce {op.lower()} fractions {dtype}"
            self.submit(case, hvd.allreduce_async, given, op=getattr(hvd, op))
        self.submitted.collect()

    def unusual_values(self):
        """Overflow, and what is not a number."""
        for dtype in ("int8", "uint8", "int32", "int64"):
            limits = torch.iinfo(getattr(torch, dtype))
            given = torch.tensor([limits.min, limits.max, 100, 3], dtype=getattr(torch, dtype))
            for op in ("Sum", "Product", "Min", "Max"):
                case = f"allreduce {op.lower()} overflow {dtype}"
                self.submit(case, hvd.allreduce_async, given, op=getattr(hvd, op))
        for dtype in FLOATS:
            limits = torch.finfo(getattr(torch, dtype))
            special = [float("inf"), -float("inf"), -0.0, limits.max, limits.smallest_normal / 4]
            special = torch.tensor(special, dtype=getattr(torch, dtype))
            for op in ("Sum", "Min", "Max"):
                case = f"allreduce {op.lower()} special {dtype}"
                self.submit(case, hvd.allreduce_async, special, op=getattr(hvd, op))
            undefined = torch.tensor([float("nan"), 1.0], dtype=special.dtype)
            case = f"allreduce sum undefined {dtype}"
            self.submit(case, hvd.allreduce_async, undefined, op=hvd.Sum)
        self.submitted.collect()

    def shapes_and_sizes(self):
        for dtype in ("float16", "float32"):
            given = tensor((1 << 20,), dtype, 3)
            self.submit(f"allreduce large {dtype}", hvd.allreduce_async, given, op=hvd.Sum)
        for dims in (4, 8):
            given = tensor((2,) * dims, "float32", dims)
            self.submit(f"allreduce {dims} dimensions", hvd.allreduce_async, given, op=hvd.Sum)
            self.submit(f"allgather {dims} dimensions", hvd.allgather_async, given)
        for compression in (hvd.Compression.fp16, hvd.Compression.none):
            case = f"allreduce {compression.__name__} {self.name}"
            given = tensor((301,), "float64", 4, fractions)
            options = {"compression": compression, "process_set": self.process_set}
            self.record.attempt(case, hvd.allreduce, given, name=case, **options)
            case = f"reducescatter {compression.__name__} {self.name}"
            self.record.attempt(case, hvd.reducescatter, given, name=case, **options)
        self.submitted.collect()

    def groups(self):
        me = self.process_set.rank()
        many = [tensor((3 + 17 * i,), "float32", i) for i in range(40)]
        mixed = [tensor((5, i), dtype, i) for i, dtype in enumerate(self.reduced)]
        for op in OPS:
            case = f"grouped allreduce {op.lower()}"
            self.submit(case, hvd.grouped_allreduce_async, many, op=getattr(hvd, op))
        self.submit("grouped allreduce types", hvd.grouped_allreduce_async, mixed, op=hvd.Sum)
        scales = {"prescale_factor": 0.5, "postscale_factor": 3.0}
        self.submit(
            "grouped allreduce scaled", hvd.grouped_allreduce_async, many, op=hvd.Sum, **scales
        )
        self.submit(
            "grouped allreduce in place",
            hvd.grouped_allreduce_async_,
            [one.clone() for one in many],
            op=hvd.Average,
        )
        for dtype in self.moved:
            group = [tensor((2 + i + me, 3), dtype, i) for i in range(4)]
            self.submit(f"grouped allgather {dtype}", hvd.grouped_allgather_async, group)
        empty = [tensor((i * me, 2), "float32", i) for i in range(3)]
        self.submit("grouped allgather empty", hvd.grouped_allgather_async, empty)
        for op in ("Sum", "Average"):
            group = [tensor((5 + i, 2), "float32", i) for i in range(4)]
            case = f"grouped reducescatter {op.lower()}"
            self.submit(case, hvd.grouped_reducescatter_async, group, op=getattr(hvd, op))
        self.submit(
            "grouped reducescatter scaled",
            hvd.grouped_reducescatter_async,
            [one.clone() for one in many],
            op=hvd.Sum,
            **scales,
        )
        self.submitted.collect()

    def gathers(self):
        me = self.process_set.rank()
        firsts = {"empty": 0, "one": 1, "uneven": me, "first only": me == 0, "odd": 1000 + me}
        for seed, dtype in enumerate(self.moved):
            for label, first in firsts.items():
                for rest in ((), (3,), (2, 0)):
                    given = tensor((int(first), *rest), dtype, seed)
                    self.submit(f"allgather {dtype} {label} {rest}", hvd.allgather_async, given)
        self.submitted.collect()

    def broadcasts(self):
        for seed, dtype in enumerate(self.moved):
            # The root is named by its rank in the job.
            for root, (label, shape) in itertools.product(self.process_set.ranks, SHAPES.items()):
                given = tensor(shape, dtype, seed)
                case = f"broadcast {dtype} {label} {root}"
                self.submit(case, hvd.broadcast_async, given, root)
                self.submit(f"{case} in place", hvd.broadcast_async_, given.clone(), root)
                self.record.keep(f"{case} {self.name} unchanged", given)
        self.submitted.collect()

    def alltoalls(self):
        me, size = self.process_set.rank(), self.process_set.size()
        splits = {
            "none": [0] * size,
            "few": [(me + peer) % 2 for peer in range(size)],
            "uneven": [100 + 7 * me + peer for peer in range(size)],
            "to the last": [0] * (size - 1) + [5 + me],
            "from the first": [3 * (me == 0)] * size,
        }
        for seed, dtype in enumerate(self.moved):
            for label, parts in splits.items():
                given = tensor((sum(parts), 2), dtype, seed)
                chosen = torch.tensor(parts, dtype=torch.int32)
                self.submit(f"alltoall {dtype} {label}", hvd.alltoall_async, given, chosen)
            # What the splits leave over is not sent.
            chosen = torch.ones(size, dtype=torch.int32)
            given = tensor((size + 2,), dtype, seed)
            self.submit(f"alltoall {dtype} rest", hvd.alltoall_async, given, chosen)
            given = tensor((size * 3, 2), dtype, seed)
            self.submit(f"alltoall {dtype} even", hvd.alltoall_async, given)
        self.submitted.collect()

    def scatters(self):
        size = self.process_set.size()
        shapes = {(size,), (1,), (0,), (size - 1, 2), (7, 3), (10007,), (1 << 13, 4), (3, 0)}
        cases = itertools.product(self.reduced, sorted(shapes), ("Sum", "Average"))
        for seed, (dtype, shape, op) in enumerate(cases):
            case = f"reducescatter {op.lower()} {dtype} {shape}"
            given = tensor(shape, dtype, seed)
            self.submit(case, hvd.reducescatter_async, given, op=getattr(hvd, op))
        for dtype, (before, after) in itertools.product(("float16", "float32", "int32"), SCALES):
            self.submit(
                f"reducescatter scaled {dtype} {before:.2f} {after}",
                hvd.reducescatter_async,
                tensor((101, 3), dtype, 7) * 12,
                op=hvd.Sum,
                prescale_factor=before,
                postscale_factor=after,
            )
        self.submitted.collect()

    def run(self):
        self.reductions()
        self.unusual_values()
        self.shapes_and_sizes()
        self.groups()
        self.gathers()
        self.broadcasts()
        self.alltoalls()
        self.scatters()
        hvd.barrier(self.process_set)


def run(record, sets):
    for name, process_set in mine(sets).items():
        Theme(record, name, process_set).run()
