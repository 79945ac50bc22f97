"""What this process holds more, once process sets of every choice of ranks are there and in use.

Argument: the folder for the results.
"""

import itertools
from pathlib import Path

import horovod.torch as hvd
import results
import torch


def held():
    """Threads, descriptors, and the shared memories of ringcoll's meshes."""
    process = Path("/proc/self")
    maps = (process / "maps").read_text().splitlines()
    return {
        "threads": len([*(process / "task").iterdir()]),
        "descriptors": len([*(process / "fd").iterdir()]),
        "memories": len({line.split()[4] for line in maps if "/memfd:ringcoll" in line}),
    }


def use(process_set):
    """All pairs of its ranks talk."""
    size, name = process_set.size(), str(process_set.ranks)
    hvd.alltoall(torch.arange(size), name=f"{name} alltoall", process_set=process_set)
    summed = hvd.allreduce(torch.ones(3), op=hvd.Sum, name=name, process_set=process_set)
    assert summed[0].item() == size


hvd.init(process_sets="dynamic")
use(hvd.global_process_set)
before = held()
choices = [
    members
    for size in range(1, hvd.size())
    for members in itertools.combinations(range(hvd.size()), size)
]
sets = [hvd.add_process_set(members) for members in choices]
included = [process_set for process_set in sets if process_set.included()]
for process_set in included:
    use(process_set)
hvd.barrier()
after = held()
results.write(
    hvd.rank(), sets=len(included), grown={name: after[name] - before[name] for name in after}
)
hvd.barrier()
hvd.shutdown()
