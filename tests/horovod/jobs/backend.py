"""Which backend is in use, and the basics over it: allreduce, process sets, join."""

import horovod.torch as hvd
import results
import torch

even, odd = hvd.ProcessSet([0]), hvd.ProcessSet([1])
hvd.init(process_sets=[even, odd])
rank, size = hvd.rank(), hvd.size()

mine = even if rank == 0 else odd
total = hvd.allreduce(torch.arange(10.0) + rank, op=hvd.Sum, name="total")
alone = hvd.allreduce(torch.tensor([rank + 1.0]), op=hvd.Sum, name="alone", process_set=mine)
hvd.barrier()

# Rank 0 has one batch more; the others have joined by then and add zeros.
after = []
for step in range(2 if rank == 0 else 1):
    after.append(hvd.allreduce(torch.ones(5), op=hvd.Sum, name=f"step{step}")[0].item())
last = hvd.join()

results.write(
    rank,
    size=size,
    local=[hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()],
    homogeneous=hvd.mpi_ops.is_homogeneous(),
    total=total.tolist(),
    alone=alone.item(),
    joined=after,
    last=int(last),
    ringcoll=hvd.ringcoll_enabled(),
    gloo=hvd.gloo_enabled(),
    mpi=hvd.mpi_enabled(),
)
hvd.shutdown()
