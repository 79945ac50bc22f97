"""Adasum where the number of ranks is no power of two: refused, and the job goes on."""

import horovod.torch as hvd
import results
import torch

hvd.init()
messages = []
for operation in (hvd.allreduce, lambda t, op: hvd.grouped_allreduce([t], op=op)):
    try:
        operation(torch.ones(3), op=hvd.Adasum)
    except NotImplementedError as error:
        messages.append(str(error))
total = hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist()
results.write(hvd.rank(), messages=messages, total=total)
