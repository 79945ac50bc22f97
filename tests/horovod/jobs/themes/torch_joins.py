"""Ranks with fewer batches than others: join() with every operation, cached or not, and after."""

import itertools

import horovod.torch as hvd
import torch
from recording import Submitted


def uneven_batches(record):
    """Rank r has r batches; the last rank joins last. Then the first one has most."""
    for label, batches in (
        ("rising", hvd.rank()),
        ("falling", hvd.size() - hvd.rank()),
    ):
        for step in range(batches):
            for op in (hvd.Sum, hvd.Average):
                given = torch.full((11,), hvd.rank() + 1.0)
                case = f"{label} {step} {op}"
                record.keep(case, hvd.allreduce(given, op=op, name=case))
        record.keep(f"{label} last", hvd.join())


def fused_and_cached(record):
    """Two tensors at a time, of which the response is in the cache of each rank or of none."""
    submitted = Submitted(record, hvd.synchronize)
    cases = itertools.product(
        ("int32", "int64", "float16", "float32", "float64"), (0, hvd.size() - 1), (False, True)
    )
    for dtype, first, cached in cases:
        given = [torch.arange(n).to(getattr(torch, dtype)) + hvd.rank() for n in (5, 171)]

        def both(where, given=given, dtype=dtype):
            for i, tensor in enumerate(given):
                record_as = f"fused {dtype} {i}"
                handle = hvd.allreduce_async(tensor, name=record_as, op=hvd.Average)
                yield f"{record_as} {where}", handle

        where = f"{first} {cached}"
        if cached:
            for case, handle in list(both(f"{where} before")):
                record.attempt(case, hvd.synchronize, handle)
        if hvd.rank() != first:
            for case, handle in list(both(f"{where} after")):
                record.attempt(case, hvd.synchronize, handle)
        last = hvd.join()
        assert hvd.size() == 2 or last != first
    submitted.collect()


def other_operations(record):
    """Join supports allreduce alone: what else is asked for fails, and the job goes on."""
    given = torch.ones(4 * hvd.size(), 3)
    operations = {
        "allgather": lambda name: hvd.allgather(given, name=name),
        "broadcast": lambda name: hvd.broadcast(given, 1, name=name),
        "alltoall": lambda name: hvd.alltoall(given, name=name),
        "reducescatter": lambda name: hvd.reducescatter(given, name=name),
        "grouped allreduce": lambda name: hvd.grouped_allreduce([given, given[:2]], name=name),
        "grouped allgather": lambda name: hvd.grouped_allgather([given, given[:2]], name=name),
    }
    for again, (case, operation) in itertools.product((False, True), operations.items()):
        if hvd.rank() > 0:
            record.attempt(f"{case} joined {again}", operation, f"{case} joined")
        record.keep(f"{case} {again} last is not first", hvd.join() > 0)
        record.attempt(f"{case} {again} afterwards", operation, f"{case} afterwards")


def run(record, _sets):
    uneven_batches(record)
    fused_and_cached(record)
    other_operations(record)
