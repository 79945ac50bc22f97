"""Works until Horovod ends, and then submits another tensor.

Argument: the folder for the results.
"""

import os

import horovod.torch as hvd
import results
import torch
from horovod.common.exceptions import HorovodInternalError


def told(name):
    """Of the end of Horovod; empty if there is none."""
    try:
        hvd.allreduce(torch.ones(2), name=name)
    except HorovodInternalError as error:
        return str(error)
    return ""


hvd.init()
texts = []
for step in range(1000):
    texts = [told(str(step))]
    if texts[0]:
        break
texts.append(told("late"))
results.write(int(os.environ["HOROVOD_RANK"]), texts=texts)
