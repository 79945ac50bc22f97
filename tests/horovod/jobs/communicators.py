"""hvd.init() with communicators of mpi4py, or with lists of ranks, and what each rank then sees.

Arguments: the folder for the records, and one of

- halves: two jobs of Horovod, each on a communicator of every other rank;
- lists: the same by lists of ranks;
- backwards: one job, whose ranks are in the opposite order;
- sets: everybody, and process sets given as communicators and as ranks;
- world: everybody, where horovodrun and not MPI has started the ranks.
"""

import fcntl
import sys

import horovod.torch as hvd
import mpi4py
import results
import torch
from recording import from_launcher

mpi4py.rc(initialize=False, finalize=True)
from mpi4py import MPI  # noqa: E402

if sys.argv[2] == "world":
    # One after another: processes without mpirun that begin together may fail to make the one
    # folder that Open MPI has for all of them.
    with (results.FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        MPI.Init_thread()
else:
    MPI.Init_thread()
world = MPI.COMM_WORLD
rank = from_launcher("RANK")
half = world.Split(rank % 2, rank)
by_comm, by_ranks = hvd.ProcessSet(half), hvd.ProcessSet([0, 1])
included = []

match sys.argv[2]:
    case "halves":
        hvd.init(comm=half)
    case "lists":
        hvd.init(comm=list(range(rank % 2, from_launcher("SIZE"), 2)))
    case "backwards":
        hvd.init(comm=world.Split(0, -rank))
    case "sets":
        hvd.init(comm=world, process_sets=[by_comm, by_ranks])
        included = [one for one in (by_comm, by_ranks) if one.included()]
    case "world":
        hvd.init(comm=world)

results.write(
    rank,
    place=[hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()],
    gathered=hvd.allgather(torch.tensor([rank])).tolist(),
    total=hvd.allreduce(torch.ones(3) + rank, op=hvd.Sum).tolist(),
    sets=[
        [one.ranks, one.rank(), hvd.allgather(torch.tensor([rank]), "set", one).tolist()]
        for one in included
    ],
)
hvd.barrier()  # who shuts down ends what others still have under way
hvd.shutdown()
