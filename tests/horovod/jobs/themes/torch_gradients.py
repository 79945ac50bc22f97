"""Gradients of every operation of horovod.torch. Their own operations have no names."""

import itertools

import horovod.torch as hvd
import numpy as np
import torch
from counting import align
from recording import whole_numbers


class Theme:
    def __init__(self, record, name, process_set):
        self.record, self.name, self.process_set = record, name, process_set

    def leaf(self, shape, dtype, seed):
        given = torch.from_numpy(np.asarray(whole_numbers(shape, dtype, seed, hvd.rank())))
        return given.requires_grad_()

    def differentiate(self, case, inputs, operation):
        """Records what the operation gives and the gradients of a weighted sum of it."""
        case = f"{case} {self.name}"
        outputs = operation(inputs, name=case, process_set=self.process_set)
        outputs = [outputs] if torch.is_tensor(outputs) else list(outputs)
        floats = [one for one in outputs if one.is_floating_point()]
        self.record.keep(f"{case} result", outputs)
        weights = [
            torch.arange(one.numel(), dtype=one.dtype).reshape(one.shape) % 5 + 1 + hvd.rank()
            for one in floats
        ]
        sum((one * weight).sum() for one, weight in zip(floats, weights, strict=True)).backward()
        for i, given in enumerate([inputs] if torch.is_tensor(inputs) else inputs):
            self.record.keep(f"{case} gradient {i}", given.grad)

    def reductions(self, dtype):
        scales = ((1.0, 1.0), (0.5, 2.0))
        for op, (before, after) in itertools.product(("Sum", "Average"), scales):
            options = {
                "op": getattr(hvd, op),
                "prescale_factor": before,
                "postscale_factor": after,
            }
            for case, operation in (
                ("allreduce", hvd.allreduce),
                ("reducescatter", hvd.reducescatter),
            ):
                self.differentiate(
                    f"{case} {op} {dtype} {before}",
                    self.leaf((7, 3), dtype, 1),
                    lambda given, operation=operation, options=options, **where: operation(
                        given, **options, **where
                    ),
                )
                grouped = getattr(hvd, f"grouped_{case}")
                self.differentiate(
                    f"grouped {case} {op} {dtype} {before}",
                    [self.leaf((5 + i, 2), dtype, i) for i in range(3)],
                    lambda given, grouped=grouped, options=options, **where: grouped(
                        given, **options, **where
                    ),
                )

    def movements(self, dtype):
        me, size = self.process_set.rank(), self.process_set.size()
        for label, first in (("even", 3), ("uneven", 2 * me + 1), ("some empty", 2 * me)):
            self.differentiate(
                f"allgather {label} {dtype}", self.leaf((first, 2), dtype, 2), hvd.allgather
            )
        self.differentiate(
            f"grouped allgather {dtype}",
            [self.leaf((i + me, 2), dtype, i) for i in range(3)],
            hvd.grouped_allgather,
        )
        for root in self.process_set.ranks:
            self.differentiate(
                f"broadcast {dtype} {root}",
                self.leaf((4, 2), dtype, 3),
                lambda given, root=root, **where: hvd.broadcast(given, root, **where),
            )
        splits = torch.tensor([me + peer for peer in range(size)], dtype=torch.int32)
        self.differentiate(
            f"alltoall {dtype}",
            self.leaf((int(splits.sum()), 2), dtype, 4),
            lambda given, **where: hvd.alltoall(given, splits, **where),
        )
        self.differentiate(f"alltoall even {dtype}", self.leaf((size, 2), dtype, 5), hvd.alltoall)


def run(record, sets):
    for name in ("world", "others"):
        align()
        if not sets[name].included():
            continue
        theme = Theme(record, name, sets[name])
        for dtype in ("float32", "float64"):
            theme.reductions(dtype)
            theme.movements(dtype)
