"""Types that the other backends lack: a right result, or an error that names the type."""

import horovod.torch as hvd
import results
import torch

hvd.init()
rank, size = hvd.rank(), hvd.size()
mine = torch.full((5,), rank + 1)
CASES = {
    "reduce": lambda t: hvd.allreduce(t, op=hvd.Sum),
    "average": hvd.allreduce,
    "gather": hvd.allgather,
    "broadcast": lambda t: hvd.broadcast(t, 1),
    "alltoall": lambda t: hvd.alltoall(t[: 2 * size]),
    "scatter": lambda t: hvd.reducescatter(t, op=hvd.Sum),
    "adasum": lambda t: hvd.allreduce(t, op=hvd.Adasum),
}


def outcome(operation, tensor):
    """The numbers of the result, or what was raised."""
    try:
        return operation(tensor).double().tolist()
    except hvd.mpi_ops.HorovodInternalError as error:
        return str(error)


results.write(
    rank,
    **{
        f"{name} {str(dtype).removeprefix('torch.')}": outcome(operation, mine.to(dtype))
        for name, operation in CASES.items()
        for dtype in (torch.bfloat16, torch.bool, torch.int16, torch.uint8)
    },
)
