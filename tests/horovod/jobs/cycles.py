"""When cycles begin: how long single tensors take after a while of quiet, and what sleeping costs.

Arguments: the folder for the results; of whom an allreduce is: "all", or ranks ("1,2"); a value of
HOROVOD_CYCLE_TIME that rank 1 alone has, or nothing.
"""

import os
import statistics
import sys
import time

members, of_one = sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else ""
if of_one and os.environ["HOROVOD_RANK"] == "1":
    os.environ["HOROVOD_CYCLE_TIME"] = of_one

import horovod.torch as hvd  # noqa: E402
import results  # noqa: E402
import torch  # noqa: E402

ROUNDS = 15
QUIET_S = 0.07
IDLE_S = 2.0

torch.set_num_threads(1)
chosen = [] if members == "all" else [hvd.ProcessSet([int(rank) for rank in members.split(",")])]
hvd.init(process_sets=chosen)
process_set = chosen[0] if chosen else hvd.global_process_set
facts = {}
if process_set.included():
    size = process_set.size()
    seconds = []
    for _ in range(ROUNDS):
        time.sleep(QUIET_S)
        begun = time.perf_counter()
        got = hvd.allreduce(torch.ones(1), op=hvd.Sum, name="one", process_set=process_set)
        seconds.append(time.perf_counter() - begun)
        assert got.item() == size
    facts["median"] = statistics.median(seconds)
    # One comes late, and the others have been told to wait by then.
    late = []
    for _ in range(ROUNDS):
        hvd.allreduce(torch.ones(1), name="meet", process_set=process_set)
        if process_set.rank() == 0:
            time.sleep(QUIET_S)
        begun = time.perf_counter()
        hvd.allreduce(torch.ones(1), name="late", process_set=process_set)
        late.append(time.perf_counter() - begun)
    facts["late"] = statistics.median(late)
before = time.process_time()
time.sleep(IDLE_S)
facts["cores"] = (time.process_time() - before) / IDLE_S
hvd.barrier()
results.write(hvd.rank(), **facts)
hvd.shutdown()
