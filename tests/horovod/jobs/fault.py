"""Allreduces without end; what a rank sees when one of them stops. The victim gives its pid.

Arguments: the folder for the results, elements, and "rung" if rank 2 is to take no part: it submits
nothing, is woken for the cycles of the others, and sees the end of its next allreduce.
"""

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
rung = sys.argv[3:] == ["rung"]
process_set = hvd.ProcessSet([0, 1]) if rung else hvd.global_process_set
hvd.init(process_sets=[process_set] if rung else [])
rank = hvd.rank()
gradients = torch.ones(int(sys.argv[2]))
step = 0
try:
    if rung and rank == 2:
        results.put(f"pid{rank}", str(os.getpid()))
        while not (results.FOLDER / "hit").exists():
            time.sleep(0.01)
        hvd.allreduce_(gradients, name="never")
    while True:
        hvd.allreduce_(gradients, op=hvd.Average, name=f"step{step}", process_set=process_set)
        step += 1
        if step == 3:
            results.put(f"pid{rank}", str(os.getpid()))
except HorovodInternalError as error:
    results.write(rank, when=time.time(), message=str(error))
# Horovod is still in one piece: elastic training shuts it down before it begins anew.
hvd.shutdown()
results.put(f"ended{rank}", "")
