"""hvd.init() with a communicator of mpi4py or a list of ranks gives the same under each backend."""

import json

import pytest

SIZE = 4


# In this order: after a life of half of the ranks Horovod 0.28.1 refuses sets of all, with its own
# MPI as well.
LIVES = ("sets", "backwards", "halves", "lists")


@pytest.fixture(scope="module")
def seen(folder_of):
    """seen(life, operations, controller=…, launcher=…) -> what each rank saw in it. A job lives all
    its lives in one go."""

    def run(life, operations, controller="", launcher="mpirun"):
        lives = LIVES if launcher == "mpirun" else ("world",)
        named = {"HOROVOD_CPU_OPERATIONS": operations}
        if controller:
            named["HOROVOD_CONTROLLER"] = controller
        folder = folder_of("communicators.py", *lives, np=SIZE, launcher=launcher, **named)
        return [json.loads((folder / f"rank{rank}.json").read_text())[life] for rank in range(SIZE)]

    return run


def expected(rank, members, sets=()):
    """`members`: ranks of the launcher, in the order of Horovod's."""
    place = members.index(rank)
    return {
        "place": [place, len(members)] * 2,
        "gathered": members,
        "total": [float(sum(members) + len(members))] * 3,
        "sets": [[one, one.index(rank), one] for one in sets if rank in one],
    }


# What Horovod's own MPI gives is where these expectations come from.
BACKENDS = pytest.mark.parametrize(
    ("operations", "controller"),
    [
        ("RINGCOLL", ""),
        ("RINGCOLL", "MPI"),
        pytest.param("MPI", "MPI", marks=pytest.mark.exhaustive),
    ],
)


@BACKENDS
@pytest.mark.parametrize("life", ["halves", "lists"])
def test_two_jobs_of_one_mpirun(seen, life, operations, controller):
    for rank, found in enumerate(seen(life, operations, controller)):
        assert found == expected(rank, list(range(rank % 2, SIZE, 2)))


@BACKENDS
def test_ranks_in_another_order(seen, operations, controller):
    for rank, found in enumerate(seen("backwards", operations, controller)):
        assert found == expected(rank, list(reversed(range(SIZE))))


@BACKENDS
def test_process_sets_given_as_communicators(seen, operations, controller):
    for rank, found in enumerate(seen("sets", operations, controller)):
        sets = [[rank % 2, rank % 2 + 2], [0, 1]]
        assert found == expected(rank, list(range(SIZE)), sets)


@pytest.mark.parametrize(
    "operations", [pytest.param("GLOO", marks=pytest.mark.exhaustive), "RINGCOLL"]
)
def test_horovodrun_knows_the_ranks_though_mpi_does_not(seen, operations):
    """To MPI each process is then a job of its own."""
    found = seen("world", operations, launcher="horovodrun --gloo")
    assert found == [expected(rank, list(range(SIZE))) for rank in range(SIZE)]
