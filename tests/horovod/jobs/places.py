"""Where each rank is, and that every rank is reached."""

import horovod.torch as hvd
import results
import torch

hvd.init()
assert hvd.allreduce(torch.ones(3), op=hvd.Sum)[0].item() == hvd.size()
results.write(
    hvd.rank(),
    local=[hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()],
    homogeneous=hvd.mpi_ops.is_homogeneous(),
)
