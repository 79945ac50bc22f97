"""A process set is added, used and removed, three times over the same ranks."""

import horovod.torch as hvd
import results
import torch

hvd.init(process_sets="dynamic")
sums = []
for _ in range(3):
    ends = hvd.add_process_set([0, hvd.size() - 1])
    if ends.included():
        mine = torch.tensor([hvd.rank() + 1.0])
        sums.append(hvd.allreduce(mine, op=hvd.Sum, process_set=ends).item())
    hvd.barrier()
    assert hvd.remove_process_set(ends)
results.write(hvd.rank(), sums=sums)
