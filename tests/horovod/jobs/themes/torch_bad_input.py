"""Calls that ranks disagree about or that no backend does: the error, and that the job goes on."""

import horovod.torch as hvd
import torch


def differs(first, others):
    """One thing on rank 0 and another on the rest."""
    return first if hvd.rank() == 0 else others


def disagreements():
    ones, wide = torch.ones(6), torch.ones(6, 2)
    byte, real = torch.ones(6, dtype=torch.int32), torch.ones(6)
    yield "allreduce shapes", lambda n: hvd.allreduce(torch.ones(17 + (hvd.rank() > 0)), name=n)
    yield "allreduce dimensions", lambda n: hvd.allreduce(differs(ones, wide), name=n)
    yield "allreduce types", lambda n: hvd.allreduce(differs(byte, real), name=n)
    yield "allreduce ops", lambda n: hvd.allreduce(ones, op=differs(hvd.Sum, hvd.Min), name=n)
    yield (
        "allreduce sum and average",
        lambda n: hvd.allreduce(ones, op=differs(hvd.Sum, hvd.Average), name=n),
    )
    yield (
        "allreduce scales",
        lambda n: hvd.allreduce(ones, op=hvd.Sum, prescale_factor=differs(0.5, 2.0), name=n),
    )
    yield "allgather dimensions", lambda n: hvd.allgather(differs(ones, wide), name=n)
    yield "allgather widths", lambda n: hvd.allgather(torch.ones(3, 2 + (hvd.rank() > 0)), name=n)
    yield "allgather types", lambda n: hvd.allgather(differs(byte, real), name=n)
    yield "allgather scalar", lambda n: hvd.allgather(torch.tensor(1.0), name=n)
    yield "broadcast roots", lambda n: hvd.broadcast(ones, differs(0, 1), name=n)
    yield "broadcast shapes", lambda n: hvd.broadcast(torch.ones(17 + (hvd.rank() > 0)), 0, name=n)
    yield "broadcast types", lambda n: hvd.broadcast(differs(byte, real), 0, name=n)
    yield "alltoall types", lambda n: hvd.alltoall(torch.ones(12).to(differs(byte, real)), name=n)
    yield (
        "alltoall widths",
        lambda n: hvd.alltoall(torch.ones(hvd.size(), 2 + (hvd.rank() > 0)), name=n),
    )
    yield (
        "alltoall dimensions",
        lambda n: hvd.alltoall(torch.ones(12, *[2] * (hvd.rank() > 0)), name=n),
    )
    yield (
        "reducescatter shapes",
        lambda n: hvd.reducescatter(torch.ones(9 + (hvd.rank() > 0)), name=n),
    )
    yield "reducescatter types", lambda n: hvd.reducescatter(differs(byte, real), name=n)
    yield (
        "reducescatter ops",
        lambda n: hvd.reducescatter(ones, op=differs(hvd.Sum, hvd.Average), name=n),
    )
    yield (
        "reducescatter scales",
        lambda n: hvd.reducescatter(ones, op=hvd.Sum, prescale_factor=differs(0.5, 2.0), name=n),
    )
    yield (
        "group shapes",
        lambda n: hvd.grouped_allreduce([ones, torch.ones(3 + (hvd.rank() > 0)), wide], name=n),
    )
    yield "group types", lambda n: hvd.grouped_allgather([ones, differs(byte, real)], name=n)
    yield (
        "group shapes of scatters",
        lambda n: hvd.grouped_reducescatter([ones, torch.ones(3 + (hvd.rank() > 0))], name=n),
    )


def refusals():
    """What every rank refuses alike."""
    ones, size = torch.ones(6), hvd.size()
    int32 = torch.int32
    for dtype in ("complex64", "float8_e4m3fn"):
        odd = torch.zeros(2 * size).to(getattr(torch, dtype))
        for operation in ("allreduce", "allgather", "reducescatter", "alltoall"):
            yield (
                f"{operation} {dtype}",
                lambda n, odd=odd, operation=operation: getattr(hvd, operation)(odd, name=n),
            )
        yield f"broadcast {dtype}", lambda n, odd=odd: hvd.broadcast(odd, 0, name=n)
    yield "not contiguous", lambda n: hvd.allreduce(torch.ones(4, 3).t(), name=n)
    yield "not contiguous in place", lambda n: hvd.allreduce_(torch.ones(4, 3).t(), name=n)
    yield "op and average", lambda n: hvd.allreduce(ones, average=True, op=hvd.Sum, name=n)
    yield "reducescatter min", lambda n: hvd.reducescatter(ones, op=hvd.Min, name=n)
    yield "reducescatter scalar", lambda n: hvd.reducescatter(torch.tensor(1.0), name=n)
    yield "broadcast from nobody", lambda n: hvd.broadcast(ones, size, name=n)
    yield "broadcast from -1", lambda n: hvd.broadcast(ones, -1, name=n)
    yield "alltoall scalar", lambda n: hvd.alltoall(torch.tensor(1.0), name=n)
    yield "alltoall not even", lambda n: hvd.alltoall(torch.ones(size + 1), name=n)
    for case, splits in {
        "too many splits": torch.ones(size + 1, dtype=int32),
        "too large splits": torch.full((size,), 100, dtype=int32),
        "splits of another type": torch.ones(size),
        "splits of two dimensions": torch.ones(size, 1, dtype=int32),
        "splits of no dimension": torch.tensor(6, dtype=int32),
    }.items():
        yield f"alltoall {case}", lambda n, splits=splits: hvd.alltoall(ones, splits, name=n)
    yield "empty group", lambda n: hvd.grouped_allreduce([], name=n)


def names_in_use(record):
    """Of two operations of one name the second is refused; the first one is done."""
    for operation in ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter"):
        submit = getattr(hvd, f"{operation}_async")
        root = (0,) if operation == "broadcast" else ()
        given = torch.ones(2 * hvd.size()) + hvd.rank()
        if hvd.rank() == 0:  # its first one cannot be done before the others begin theirs
            first = submit(given, *root, name="taken")
            record.attempt(f"{operation} name in use", submit, given, *root, name="taken")
        hvd.barrier()
        if hvd.rank() > 0:
            first = submit(given, *root, name="taken")
        record.keep(f"{operation} first of the name", hvd.synchronize(first))
    record.attempt("synchronize nothing", hvd.synchronize, -1)
    done = hvd.allreduce_async(torch.ones(3), name="done")
    hvd.synchronize(done)
    record.attempt("synchronize again", hvd.synchronize, done)


def foreign_sets(record, sets):
    """A rank that is no member, and sets that do not exist."""
    given = torch.ones(4)
    others = sets["others"]
    options = {"name": "foreign", "process_set": others}
    for case, operation in {
        "allreduce": lambda: hvd.allreduce(given, **options),
        "grouped allreduce": lambda: hvd.grouped_allreduce([given], **options),
        "allgather": lambda: hvd.allgather(given, **options),
        "broadcast": lambda: hvd.broadcast(given, others.ranks[-1], **options),
        "alltoall": lambda: hvd.alltoall(torch.ones(hvd.size() - 1), **options),
        "reducescatter": lambda: hvd.reducescatter(given, **options),
        "barrier": lambda: hvd.barrier(process_set=others),
    }.items():
        record.attempt(f"{case} of a set without rank 0", operation)
    record.attempt("rank in the set", others.rank)
    if hvd.rank() > 0:
        record.attempt("root outside", hvd.broadcast, given, 0, "outside", others)
    unknown = hvd.ProcessSet([0])
    record.keep("unknown set", [str(unknown.size()), str(unknown.rank())])
    unknown.process_set_id = 77
    record.attempt("allreduce of an unknown set", hvd.allreduce, given, process_set=unknown)
    record.attempt("broadcast of an unknown set", hvd.broadcast, given, 0, process_set=unknown)
    record.attempt("size of an unknown set", unknown.size)
    record.attempt("no dynamic sets", hvd.add_process_set, [0])


def run(record, sets):
    for kind in (disagreements, refusals):
        for case, operation in kind():
            record.attempt(f"{kind.__name__} {case}", operation, case)
            record.keep(f"{case} afterwards", hvd.allreduce(torch.ones(3), name="after"))
            # The same name serves again, in its proper use.
            record.attempt(f"{case} name again", hvd.allreduce, torch.ones(3), name=case)
    names_in_use(record)
    foreign_sets(record, sets)
