"""Three lives of Horovod in one process, each with a process set of the same ranks."""

import horovod.torch as hvd
import results
import torch

sums = []
for _ in range(3):
    last = hvd.ProcessSet([1])
    hvd.init(process_sets=[last])
    mine = torch.tensor([hvd.rank() + 1.0])
    sums.append(hvd.allreduce(mine, op=hvd.Sum, name="all").item())
    if last.included():
        sums.append(hvd.allreduce(mine, op=hvd.Sum, name="last", process_set=last).item())
    rank = hvd.rank()
    hvd.barrier()  # one that shuts down ends it for all
    hvd.shutdown()
    assert hvd.ringcoll_enabled(), "as the other backends stay enabled"
results.write(rank, sums=sums)
