"""A great many process sets at once.

Arguments: the folder for the results, and how many. They are used one after another, and the last
one as often as the first; a set that is refused ends it, and what there is must still work.
"""

import itertools
import sys

import horovod.torch as hvd
import results
import torch

hvd.init(process_sets="dynamic")
RANK, SIZE = hvd.rank(), hvd.size()


def use(sets, step):
    """All at once, as each cycle of Horovod asks the ranks of every set."""
    handles = [
        (one, hvd.allreduce_async(torch.ones(3), op=hvd.Sum, name=f"{step}", process_set=one))
        for one in sets
        if one.included()
    ]
    for one, handle in handles:
        assert hvd.synchronize(handle).tolist() == [float(len(one.ranks))] * 3, one


choices = itertools.chain.from_iterable(
    itertools.combinations(range(SIZE), size) for size in range(1, SIZE)
)
sets, refusal = [], ""
for members in itertools.islice(choices, int(sys.argv[2])):
    try:
        sets.append(hvd.add_process_set(members))
    except RuntimeError as error:
        refusal = str(error)
        break
made = len(sets)
for step in range(2):
    use(sets, step)
hvd.barrier()
# Those that go make room for another: where one was refused, one for each of its ranks.
crowded = set(members)
while crowded:
    gone = next(process_set for process_set in reversed(sets) if crowded & set(process_set.ranks))
    sets.remove(gone)
    crowded -= set(gone.ranks)
    gone_ranks = gone.ranks
    assert hvd.remove_process_set(gone)
sets.append(hvd.add_process_set(members if refusal else gone_ranks))
use(sets[-1:], 2)
hvd.barrier()
results.write(RANK, sets=made, refusal=refusal)
hvd.shutdown()
