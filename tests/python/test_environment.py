"""Who am I, from the variables of each launcher."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from ringcoll.environment import directory_for, find_job, first_host
from ringcoll.errors import InvalidArgument

HOROVOD = {
    "HOROVOD_RANK": "3",
    "HOROVOD_SIZE": "4",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.5",
    "HOROVOD_GLOO_RENDEZVOUS_PORT": "4711",
}
TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "189163",
}
SRUN = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "6",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_JOB_ID": "77",
    "SLURM_JOB_NODELIST": "gpu[07-08]",
}


@pytest.fixture(autouse=True)
def _own_temporary_directory(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_alone():
    job = find_job(environ={})
    assert (job.rank, job.size, job.launcher) == (0, 1, "none")
    assert job.store == f"local://alone-{os.getpid()}"


def test_arguments_need_each_other_and_a_store():
    with pytest.raises(InvalidArgument, match="together"):
        find_job(rank=1, environ={})
    with pytest.raises(InvalidArgument, match="RINGCOLL_STORE"):
        find_job(rank=1, size=2, environ={})
    job = find_job(rank=1, size=2, store="tcp://a:1", environ=HOROVOD)
    assert (job.rank, job.size, job.store, job.derived) == (1, 2, "tcp://a:1", False)
    with pytest.raises(InvalidArgument, match="rank 2 of 2"):
        find_job(rank=2, size=2, store="tcp://a:1", environ={})


def test_arguments_that_agree_with_the_launcher_use_its_store():
    assert find_job(rank=3, size=4, environ=HOROVOD).store.startswith("horovod://")
    with pytest.raises(InvalidArgument, match="RINGCOLL_STORE"):
        find_job(rank=0, size=2, environ=HOROVOD)


def test_horovodrun():
    job = find_job(environ=HOROVOD)
    assert (job.rank, job.size, job.launcher) == (3, 4, "horovodrun")
    assert job.store == "horovod://10.0.0.5:4711/ringcoll"
    without = {name: value for name, value in HOROVOD.items() if "ADDR" not in name}
    with pytest.raises(InvalidArgument, match="HOROVOD_GLOO_RENDEZVOUS_ADDR"):
        find_job(environ=without)


@pytest.mark.parametrize("environ", [HOROVOD, TORCHRUN, OPEN_MPI, SRUN])
def test_ringcoll_store_overrides(environ):
    assert find_job(environ={**environ, "RINGCOLL_STORE": "tcp://a:1"}).store == "tcp://a:1"
    assert (
        find_job(store="tcp://b:2", environ={**environ, "RINGCOLL_STORE": "tcp://a:1"}).store
        == "tcp://b:2"
    )


def test_torchrun_on_several_hosts():
    job = find_job(environ=TORCHRUN)
    assert (job.rank, job.size, job.launcher) == (1, 8, "torchrun")
    port = int(re.fullmatch(r"tcp://node1:(\d+)", job.store)[1])
    assert 20000 <= port < 29000
    # The same for all ranks, another for another job or a restart.
    assert find_job(environ={**TORCHRUN, "RANK": "2"}).store == job.store
    assert find_job(environ={**TORCHRUN, "MASTER_PORT": "29501"}).store != job.store
    assert find_job(environ={**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "1"}).store != job.store
    assert find_job(environ={**TORCHRUN, "MASTER_ADDR": "fd00::2"}).store.startswith(
        "tcp://[fd00::2]:"
    )
    incomplete = {name: value for name, value in TORCHRUN.items() if name != "MASTER_ADDR"}
    with pytest.raises(InvalidArgument, match=r"MASTER_ADDR is not set.*Set RINGCOLL_STORE"):
        find_job(environ=incomplete)
    named = find_job(environ={**incomplete, "RINGCOLL_STORE": "tcp://a:1"})
    assert (named.rank, named.size, named.store) == (1, 8, "tcp://a:1")


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"HOROVOD_SIZE": "4"}, "HOROVOD_SIZE is set, as horovodrun does, and HOROVOD_RANK is not"),
        ({"RANK": "1", "MASTER_ADDR": "a"}, "RANK is set, as torchrun does, and WORLD_SIZE is not"),
        ({"OMPI_COMM_WORLD_RANK": "1"}, "and OMPI_COMM_WORLD_SIZE is not: set both or neither"),
        ({"PMI_SIZE": "2"}, "and PMI_RANK is not"),
        (
            {"SLURM_PROCID": "0", "SLURM_STEP_ID": "0"},
            "and SLURM_STEP_NUM_TASKS or SLURM_NTASKS is not",
        ),
    ],
)
def test_half_a_launcher_is_no_job_of_one(environ, said):
    with pytest.raises(InvalidArgument, match=re.escape(said)):
        find_job(environ=environ)
    # What is passed, or another launcher that says all, counts.
    assert find_job(0, 1, environ=environ).size == 1
    whole = {"PMI_RANK": "1", "PMI_SIZE": "2", "RINGCOLL_STORE": "tcp://a:1"}
    assert find_job(environ={**environ, **whole}).launcher == "mpiexec of MPICH"


def test_torchrun_on_one_host(tmp_path):
    job = find_job(environ={**TORCHRUN, "LOCAL_WORLD_SIZE": "8"})
    path = Path(job.store.removeprefix("file://"))
    assert path.is_dir() and path.parent == tmp_path
    job.tidy()
    assert not path.exists()


def test_open_mpi_on_one_host(tmp_path):
    job = find_job(environ={**OPEN_MPI, "PMIX_SERVER_TMPDIR": str(tmp_path)})
    assert (job.rank, job.size, job.launcher) == (1, 2, "mpirun of Open MPI")
    assert job.store == f"file://{tmp_path}/ringcoll-189163" and job.derived
    assert find_job(environ=OPEN_MPI).store.startswith(f"file://{tmp_path}/ringcoll-{os.getuid()}-")


def test_open_mpi_on_several_hosts():
    with pytest.raises(InvalidArgument, match=r"several hosts.*mpirun -x RINGCOLL_STORE"):
        find_job(environ={**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "1"})


def test_mpich():
    environ = {"PMI_RANK": "1", "PMI_SIZE": "2"}
    with pytest.raises(InvalidArgument, match="mpiexec -genv RINGCOLL_STORE"):
        find_job(environ={**environ, "MPI_LOCALNRANKS": "1"})
    job = find_job(environ={**environ, "RINGCOLL_STORE": "tcp://a:1"})
    assert (job.rank, job.size, job.launcher) == (1, 2, "mpiexec of MPICH")


def test_srun(tmp_path):
    job = find_job(environ=SRUN)
    assert (job.rank, job.size, job.launcher) == (5, 6, "srun")
    assert re.fullmatch(r"tcp://gpu07:2\d{4}", job.store)
    assert find_job(environ={**SRUN, "SLURM_JOB_ID": "78"}).store != job.store
    assert find_job(environ={**SRUN, "SLURM_STEP_NUM_TASKS": "9"}).size == 9
    one_host = find_job(environ={**SRUN, "SLURM_STEP_NUM_NODES": "1"})
    assert one_host.store.startswith(f"file://{tmp_path}/")
    with pytest.raises(InvalidArgument, match="names no host"):
        find_job(environ={**SRUN, "SLURM_JOB_NODELIST": ""})


def test_a_batch_script_is_not_a_rank():
    batch = {name: value for name, value in SRUN.items() if name != "SLURM_STEP_ID"}
    assert find_job(environ=batch).launcher == "none"


def test_the_inner_launcher_counts():
    assert find_job(environ={**SRUN, **OPEN_MPI, **TORCHRUN, **HOROVOD}).launcher == "horovodrun"
    assert find_job(environ={**SRUN, **TORCHRUN}).launcher == "torchrun"
    assert find_job(environ={**SRUN, **OPEN_MPI}).launcher == "mpirun of Open MPI"


def test_a_variable_that_is_no_number():
    with pytest.raises(InvalidArgument, match="SLURM_PROCID='x'"):
        find_job(environ={**SRUN, "SLURM_PROCID": "x"})


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("node1", "node1"),
        ("node1,node2", "node1"),
        ("gpu[07-08]", "gpu07"),
        ("gpu[3,5-7],cpu1", "gpu3"),
        ("r[1-2]-n", "r1-n"),
        ("a-b[010-011].example", "a-b010.example"),
        ("", None),
    ],
)
def test_first_host(hosts, first):
    assert first_host(hosts) == first


def test_a_directory_that_others_could_write_to_is_refused(tmp_path):
    path = directory_for("job")
    assert path.stat().st_mode & 0o777 == 0o700
    assert directory_for("job") == path
    path.chmod(0o777)
    with pytest.raises(InvalidArgument, match="user alone"):
        directory_for("job")
    path.rmdir()
    path.symlink_to(tmp_path)
    with pytest.raises(InvalidArgument, match="user alone"):
        directory_for("job")
    path.unlink()
    path.write_text("")
    with pytest.raises(InvalidArgument, match="user alone"):
        directory_for("job")
