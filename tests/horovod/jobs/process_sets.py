"""Process sets: static, dynamic, overlapping, several in flight, and their administration.

Argument: the folder for the records. Half of the sets are there from the start, the others come and
go.
"""

import os
import sys
from pathlib import Path

import horovod.torch as hvd
import torch
from recording import Record, Submitted, from_launcher, mine


def members_of(size):
    """Sets that overlap: each rank alone, neighbours, all but one, the ends, all."""
    found = [[rank] for rank in range(size)]
    found += [[rank, rank + 1] for rank in range(size - 1)]
    found += [[other for other in range(size) if other != rank] for rank in range(size)]
    found += [[size - 1, 0], list(range(size))]
    unique = []
    for members in found:
        if sorted(members) not in unique:
            unique.append(sorted(members))
    return unique[: unique.index(list(range(size)))]


def everything_at_once(record, sets, label):
    """All operations of all sets are under way before the first is waited for. Every rank asks in
    another order, which Horovod allows."""
    submitted = Submitted(record, hvd.synchronize)
    for step in range(3):
        included = list(mine(dict(enumerate(sets))).values())
        turn = (hvd.rank() + step) % len(included)
        for process_set in included[turn:] + included[:turn]:
            where = f"{label} {step} {process_set.ranks}"
            me, size = process_set.rank(), process_set.size()
            given = torch.arange(5.0) + 10 * hvd.rank()
            options = {"process_set": process_set}
            submitted.add(f"{where} sum", hvd.allreduce_async, given, op=hvd.Sum, **options)
            submitted.add(f"{where} average", hvd.allreduce_async, given, **options)
            submitted.add(f"{where} gather", hvd.allgather_async, given[: me + 1], **options)
            root = process_set.ranks[-1]
            submitted.add(f"{where} root", hvd.broadcast_async, given, root, **options)
            even = torch.arange(2 * size) + me
            submitted.add(f"{where} alltoall", hvd.alltoall_async, even, **options)
            submitted.add(f"{where} reducescatter", hvd.reducescatter_async, given, **options)
            submitted.add(f"{where} group", hvd.grouped_allreduce_async, [given] * 3, **options)
        submitted.collect()
    for process_set in included:
        hvd.barrier(process_set=process_set)


def one_name_everywhere(record, sets):
    """Each set has names of its own."""
    for step in range(3):
        included = mine(dict(enumerate(sets))).values()
        given = torch.arange(4.0) + hvd.rank()
        options = {"op": hvd.Sum, "name": "everywhere"}
        handles = [
            (one.ranks, hvd.allreduce_async(given, process_set=one, **options)) for one in included
        ]
        for ranks, handle in handles:
            record.keep(f"one name {step} {ranks}", hvd.synchronize(handle))


def administration(record, sets):
    for process_set in sets:
        facts = [process_set.ranks, process_set.size(), process_set.included()]
        record.keep(f"facts {process_set.ranks}", [str(fact) for fact in facts])
        record.attempt(f"place {process_set.ranks}", process_set.rank)
    known = hvd.mpi_ops._basics._get_process_set_ids_and_ranks()
    record.keep(f"{len(sets)} known", repr(known))


def come_and_go(record, turn, members, static):
    """Sets are added, used with those that stay, and removed while an operation is under way."""
    everybody = [hvd.global_process_set, *static]
    sets = [hvd.add_process_set(ranks) for ranks in members]
    record.keep(f"ids {turn}", [one.process_set_id for one in sets])
    record.attempt(f"duplicate {turn}", hvd.add_process_set, list(reversed(members[-1])))
    record.attempt(f"all {turn}", hvd.add_process_set, range(hvd.size()))
    everything_at_once(record, everybody + sets, f"dynamic {turn}")
    under_way = hvd.allreduce_async(torch.ones(3), op=hvd.Sum, name=f"under way {turn}")
    gone, rest = sets[: len(sets) // 2], sets[len(sets) // 2 :]
    record.keep(f"removed {turn}", [hvd.remove_process_set(one) for one in gone])
    record.keep(f"under way {turn}", hvd.synchronize(under_way))
    record.keep(f"removed twice {turn}", hvd.remove_process_set(gone[0]))
    record.keep(f"gone {turn}", [str(gone[0].process_set_id), str(gone[0].size())])
    everything_at_once(record, everybody + rest, f"rest {turn}")
    record.keep(f"removed rest {turn}", [hvd.remove_process_set(one) for one in rest])


def refusals(record):
    record.keep("global", hvd.remove_process_set(hvd.global_process_set))
    for case, ranks in {
        "rank twice": [0, 0],
        "rank of nobody": [0, hvd.size()],
        "negative rank": [-1, 0],
        "not a rank": ["a"],
    }.items():
        record.attempt(case, hvd.add_process_set, ranks)


def main():
    record = Record()
    members = members_of(from_launcher("SIZE"))
    static = [hvd.ProcessSet(ranks) for ranks in members[::2]]
    os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
    hvd.init(process_sets=static)
    administration(record, static)
    everything_at_once(record, [hvd.global_process_set, *static], "static")
    one_name_everywhere(record, [hvd.global_process_set, *static])
    for turn in range(3):
        come_and_go(record, turn, members[1::2], static)
    refusals(record)
    everything_at_once(record, [hvd.global_process_set, *static], "at the end")
    hvd.barrier()
    record.save(Path(sys.argv[1]) / f"process_sets.{hvd.rank()}.pickle")
    hvd.shutdown()


main()
