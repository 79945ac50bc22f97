"""hvd.init() with a communicator of mpi4py or a list of ranks gives the same under each backend."""

import json

import pytest

SIZE = 4


@pytest.fixture
def seen(start, tmp_path):
    """seen(kind, launcher, **environment) -> what each rank wrote."""

    def run(kind, launcher="mpirun", **environment):
        done = start("communicators.py", tmp_path, kind, np=SIZE, launcher=launcher, **environment)
        done = done.wait()
        assert done.status == 0, done.output
        return [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(SIZE)]

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


BACKENDS = pytest.mark.parametrize("operations", ["MPI", "RINGCOLL"])


@BACKENDS
@pytest.mark.parametrize("kind", ["halves", "lists"])
def test_two_jobs_of_one_mpirun(seen, kind, operations):
    for rank, found in enumerate(seen(kind, HOROVOD_CPU_OPERATIONS=operations)):
        assert found == expected(rank, list(range(rank % 2, SIZE, 2)))


@BACKENDS
def test_ranks_in_another_order(seen, operations):
    for rank, found in enumerate(seen("backwards", HOROVOD_CPU_OPERATIONS=operations)):
        assert found == expected(rank, list(reversed(range(SIZE))))


@pytest.mark.parametrize(
    ("operations", "controller"), [("MPI", "MPI"), ("RINGCOLL", "MPI"), ("RINGCOLL", "RINGCOLL")]
)
def test_process_sets_given_as_communicators(seen, operations, controller):
    environment = {"HOROVOD_CPU_OPERATIONS": operations, "HOROVOD_CONTROLLER": controller}
    for rank, found in enumerate(seen("sets", **environment)):
        sets = [[rank % 2, rank % 2 + 2], [0, 1]]
        assert found == expected(rank, list(range(SIZE)), sets)


@pytest.mark.parametrize("operations", ["GLOO", "RINGCOLL"])
def test_horovodrun_knows_the_ranks_though_mpi_does_not(seen, operations):
    """To MPI each process is then a job of its own."""
    found = seen("world", "horovodrun --gloo", HOROVOD_CPU_OPERATIONS=operations)
    assert found == [expected(rank, list(range(SIZE))) for rank in range(SIZE)]
