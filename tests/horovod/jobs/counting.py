"""Operations of horovod.torch without a name, in jobs whose ranks have made different calls."""

import horovod.torch as hvd
import torch


def align():
    """Makes the counts of all ranks equal, by which Horovod names what has no name.

    Every call counts, one that is refused at once as well; so those behind make some of these.
    """
    mine = hvd.allgather_async(torch.zeros(1), name="where the count is")
    hvd.synchronize(mine)
    counts = hvd.allgather(torch.tensor([mine]), name="counts")
    for _ in range(int(counts.max()) - mine):
        try:
            hvd.broadcast_async(torch.zeros(1), -1, name="from nobody")
        except ValueError:
            continue
