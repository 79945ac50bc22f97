"""Allreduces without end; what a rank sees when one of them stops. The victim gives its pid."""

import os
import signal
import sys
import time

import horovod.torch as hvd
import results
import torch
from horovod.common.exceptions import HorovodInternalError

# horovodrun ends the others when one has ended: not before they have told what they saw.
signal.signal(signal.SIGTERM, signal.SIG_IGN)
hvd.init()
rank = hvd.rank()
gradients = torch.ones(int(sys.argv[2]))
step = 0
try:
    while True:
        hvd.allreduce_(gradients, op=hvd.Average, name=f"step{step}")
        step += 1
        if step == 3:
            results.put(f"pid{rank}", str(os.getpid()))
except HorovodInternalError as error:
    results.write(rank, when=time.time(), message=str(error))
# Horovod is still in one piece: elastic training shuts it down before it begins anew.
hvd.shutdown()
results.put(f"ended{rank}", "")
