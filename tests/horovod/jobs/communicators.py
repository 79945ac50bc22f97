"""hvd.init() with communicators of mpi4py, or with lists of ranks, and what each rank then sees.

Arguments: the folder for the records, and lives of Horovod, one after another:

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


def begin(life, world, rank):
    """Returns the process sets that this rank is in."""
    half = world.Split(rank % 2, rank)
    match life:
        case "halves":
            hvd.init(comm=half)
        case "lists":
            hvd.init(comm=list(range(rank % 2, from_launcher("SIZE"), 2)))
        case "backwards":
            hvd.init(comm=world.Split(0, -rank))
        case "sets":
            sets = [hvd.ProcessSet(half), hvd.ProcessSet([0, 1])]
            hvd.init(comm=world, process_sets=sets)
            return [one for one in sets if one.included()]
        case "world":
            hvd.init(comm=world)
    return []


def look(sets):
    return {
        "place": [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()],
        "gathered": hvd.allgather(torch.tensor([from_launcher("RANK")])).tolist(),
        "total": hvd.allreduce(torch.ones(3) + from_launcher("RANK"), op=hvd.Sum).tolist(),
        "sets": [
            [
                one.ranks,
                one.rank(),
                hvd.allgather(torch.tensor([from_launcher("RANK")]), "set", one).tolist(),
            ]
            for one in sets
        ],
    }


def main():
    lives = sys.argv[2:]
    if "world" in lives:
        # One after another: processes without mpirun that begin together may fail to make the one
        # folder that Open MPI has for all of them.
        with (results.FOLDER / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            MPI.Init_thread()
    else:
        MPI.Init_thread()
    rank = from_launcher("RANK")
    seen = {}
    for life in lives:
        seen[life] = look(begin(life, MPI.COMM_WORLD, rank))
        hvd.join()  # a rank that leaves ends the job of all
        hvd.shutdown()
    results.write(rank, **seen)


main()
