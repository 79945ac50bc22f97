"""Process sets that cannot be had are an error on all ranks, and the job goes on.

Arguments: the folder for the results, and how they come to be refused: "members", by ranks that
name others; "split", by a library that splits off no group of ranks 0 and 1; "member", by one that
does but on one of its members.
"""

import sys

import horovod.torch as hvd
import results
import torch

hvd.init(process_sets="dynamic")
RANK, SIZE = hvd.rank(), hvd.size()


def total(process_set, name):
    if not process_set.included():
        return None
    return hvd.allreduce(torch.ones(1), op=hvd.Sum, name=name, process_set=process_set).item()


def refused():
    pair = [0, 1]
    if sys.argv[2] == "members" and RANK == SIZE - 1:
        pair = [1, 2]
    try:
        hvd.add_process_set(pair)
    except RuntimeError as error:
        return str(error)
    return ""


kept = hvd.add_process_set([0, SIZE - 1])
texts = [refused() for _ in range(3)]
everybody = total(hvd.global_process_set, "everybody")
before = total(kept, "kept")
others = hvd.add_process_set([1, 2])
after = total(others, "others")
ids = [kept.process_set_id, others.process_set_id]
assert hvd.remove_process_set(others)
again = total(hvd.add_process_set([1]), "again")
hvd.barrier()
results.write(
    RANK, texts=texts, everybody=everybody, before=before, after=after, ids=ids, again=again
)
hvd.shutdown()
