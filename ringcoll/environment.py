"""Finds rank, size and store of this process in the environment variables of the job's launcher.

The known launchers are horovodrun, torchrun, mpirun of Open MPI and of MPICH (also Intel MPI), and
srun. Each of them sets rank and size. Ranks find each other through a store. If the launcher has a
store, that is used. Otherwise the store is derived from values that all ranks of the job know and
other jobs do not. ``RINGCOLL_STORE`` overrides both.
"""

from __future__ import annotations

import contextlib
import os
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ringcoll.errors import InvalidArgument

Environment = Mapping[str, str]

STORE_VARIABLE = "RINGCOLL_STORE"

# Ports of derived tcp:// stores. They are below those that Linux gives to outgoing connections
# (from 32768 on), and below torch's usual 29400 and 29500. So only another listener can have one.
_FIRST_PORT = 20000
_PORTS = 9000


@dataclass(frozen=True)
class Job:
    """The rank of a process in its job, and where the ranks of the job meet."""

    rank: int
    size: int
    store: str
    launcher: str
    derived: bool  # neither the caller nor RINGCOLL_STORE named the store

    def tidy(self) -> None:
        """Removes the directory of a derived store if it is empty."""
        if self.derived and self.store.startswith("file://"):
            with contextlib.suppress(OSError):
                Path(self.store.removeprefix("file://")).rmdir()


@dataclass(frozen=True)
class _Seat:
    """Rank and size as a launcher sets them. ``store`` makes the URL of the store, and perhaps a
    directory, so it is called only if no store is named."""

    rank: int
    size: int
    store: Callable[[], str]


class _Incomplete(InvalidArgument):
    """A launcher has set only one of rank and size."""


def find_job(
    rank: int | None = None,
    size: int | None = None,
    store: str | None = None,
    environ: Environment | None = None,
) -> Job:
    """Finds rank, size and store of this process: from the arguments, and what they lack from
    ``environ`` (by default ``os.environ``).

    Without a launcher, a process is rank 0 of 1. Raises InvalidArgument if a variable makes no
    sense, if only one of rank and size is given, or if no store is known. The error says what to
    set.
    """
    environ = os.environ if environ is None else environ
    if (rank is None) != (size is None):
        raise InvalidArgument("pass rank and size together, or neither")
    launcher, seat = _find_seat(environ, required=rank is None)
    store = store or environ.get(STORE_VARIABLE)
    if rank is None or size is None:
        rank, size = (0, 1) if seat is None else (seat.rank, seat.size)
    elif seat is None or (seat.rank, seat.size) != (rank, size):
        launcher, seat = "arguments", None
    if not 0 <= rank < size:
        raise InvalidArgument(f"rank {rank} of {size} ({launcher}): ranks are 0 to size - 1")
    derived = not store
    if not store:
        store = _derived_store(size, launcher, seat)
    return Job(rank, size, store, launcher, derived)


def _derived_store(size: int, launcher: str, seat: _Seat | None) -> str:
    if size == 1:
        return f"local://alone-{os.getpid()}"
    if seat is None:
        raise _no_store(launcher, "no launcher says where they meet")
    return seat.store()


def _find_seat(environ: Environment, *, required: bool) -> tuple[str, _Seat | None]:
    """The first launcher that has set both rank and size, and its seat. If ``required``, a launcher
    that has set only one of them is an error, unless another has set both: as rank 0 of 1 each
    process would silently compute something else."""
    incomplete: list[_Incomplete] = []
    for launcher, find in _LAUNCHERS.items():
        try:
            seat = find(environ)
        except _Incomplete as error:
            incomplete.append(error)
            continue
        if seat is not None:
            return launcher, seat
    if incomplete and required:
        raise incomplete[0]
    return "none", None


def _says(environ: Environment, launcher: str, rank: str, *sizes: str) -> str | None:
    """The name in ``sizes`` that is set, if ``rank`` is set too; None if neither is set. Raises
    _Incomplete if only one is set."""
    size = next((name for name in sizes if name in environ), None)
    if rank in environ and size:
        return size
    if rank not in environ and not size:
        return None
    there, missing = (size, rank) if size else (rank, " or ".join(sizes))
    raise _Incomplete(
        f"{there} is set, as {launcher} does, and {missing} is not: set both or neither, or pass "
        "rank and size"
    )


def _no_store(launcher: str, why: str, example: str = "") -> InvalidArgument:
    return InvalidArgument(
        f"the ranks need a store to find each other, and {why} (launcher: {launcher}). "
        f"Set {STORE_VARIABLE} to the same value on all ranks: tcp://HOST:PORT, with the host of "
        "rank 0 and a free port there, or file:///DIRECTORY, an empty one that all ranks see"
        f"{example}"
    )


def _integer(environ: Environment, name: str) -> int:
    try:
        return int(environ[name])
    except ValueError:
        raise InvalidArgument(f"{name}={environ[name]!r} is not a number") from None


def _tcp(host: str, port: int) -> str:
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def _port_for(job: str) -> int:
    return _FIRST_PORT + zlib.crc32(job.encode()) % _PORTS


def directory_for(job: str) -> Path:
    """A directory of this user, the same for all ranks of a job on one host. Makes it if needed.

    Raises InvalidArgument if the name belongs to something that other users could write to.
    """
    import hashlib  # imported here, since these two modules slow down the import of ringcoll
    import tempfile

    key = hashlib.sha256(job.encode()).hexdigest()[:16]
    return _private(Path(tempfile.gettempdir()) / f"ringcoll-{os.getuid()}-{key}")


def _private(path: Path) -> Path:
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if found.st_uid != os.getuid() or (found.st_mode & 0o170777) != 0o040700:
        raise InvalidArgument(
            f"{path} is not a directory of this user alone: remove it, or set {STORE_VARIABLE}"
        )
    return path


def _horovodrun(environ: Environment) -> _Seat | None:
    if not _says(environ, "horovodrun", "HOROVOD_RANK", "HOROVOD_SIZE"):
        return None

    def store() -> str:
        host = environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR")
        port = environ.get("HOROVOD_GLOO_RENDEZVOUS_PORT")
        if not host or not port:
            raise _no_store("horovodrun", "HOROVOD_GLOO_RENDEZVOUS_ADDR and _PORT are not set")
        return f"horovod://{host}:{port}/ringcoll"

    return _Seat(_integer(environ, "HOROVOD_RANK"), _integer(environ, "HOROVOD_SIZE"), store)


def _torchrun(environ: Environment) -> _Seat | None:
    if not _says(environ, "torchrun", "RANK", "WORLD_SIZE"):
        return None

    def store() -> str:
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in environ]
        if missing:
            raise _no_store("torchrun", f"{' and '.join(missing)} is not set")
        # torch itself listens on MASTER_PORT, and a second job often on the next port. So the port
        # is derived from everything that distinguishes this job, and this restart, from others.
        names = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
        job = " ".join(["torchrun", *(environ.get(name, "") for name in names)])
        if environ.get("LOCAL_WORLD_SIZE") == environ["WORLD_SIZE"]:
            return f"file://{directory_for(job)}"
        return _tcp(environ["MASTER_ADDR"], _port_for(job))

    return _Seat(_integer(environ, "RANK"), _integer(environ, "WORLD_SIZE"), store)


def _open_mpi(environ: Environment) -> _Seat | None:
    if not _says(environ, "mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"):
        return None
    size = _integer(environ, "OMPI_COMM_WORLD_SIZE")

    def store() -> str:
        job = environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid")
        if environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") != str(size) or not job:
            example = ", for example: mpirun -x RINGCOLL_STORE=tcp://HOST:PORT"
            raise _no_store("mpirun of Open MPI", "the job is on several hosts", example)
        # mpirun removes its session directory when it ends, even if ranks are killed.
        for name in ("PMIX_SERVER_TMPDIR", "OMPI_MCA_orte_jobfam_session_dir"):
            if name in environ and Path(environ[name]).is_dir():
                return f"file://{_private(Path(environ[name]) / f'ringcoll-{job}')}"
        return f"file://{directory_for(f'open mpi {job}')}"

    return _Seat(_integer(environ, "OMPI_COMM_WORLD_RANK"), size, store)


def _mpich(environ: Environment) -> _Seat | None:
    if not _says(environ, "mpiexec", "PMI_RANK", "PMI_SIZE"):
        return None
    size = _integer(environ, "PMI_SIZE")

    def store() -> str:
        proxy = _ancestor("hydra_pmi_proxy")
        if environ.get("MPI_LOCALNRANKS") != str(size) or proxy is None:
            example = ", for example: mpiexec -genv RINGCOLL_STORE tcp://HOST:PORT"
            raise _no_store("mpiexec of MPICH", "the job is on several hosts", example)
        return f"file://{directory_for(f'mpich {proxy}')}"

    return _Seat(_integer(environ, "PMI_RANK"), size, store)


def _srun(environ: Environment) -> _Seat | None:
    # Only a step has both. An allocation sets the number of tasks, and a batch script SLURM_PROCID.
    if not {"SLURM_PROCID", "SLURM_STEP_ID"} <= environ.keys():
        return None
    size_name = _says(environ, "srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    assert size_name  # else _says() has raised, since the rank is set
    hosts = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", "")
    nodes = environ.get("SLURM_STEP_NUM_NODES") or environ.get("SLURM_JOB_NUM_NODES", "")

    def store() -> str:
        job = f"slurm {environ.get('SLURM_JOB_ID', '')}.{environ['SLURM_STEP_ID']}"
        if nodes == "1":
            return f"file://{directory_for(job)}"
        first = first_host(hosts)
        if first is None:
            raise _no_store("srun", f"SLURM_JOB_NODELIST={hosts!r} names no host")
        return _tcp(first, _port_for(job))

    return _Seat(_integer(environ, "SLURM_PROCID"), _integer(environ, size_name), store)


def first_host(hosts: str) -> str | None:
    """The first host name in a list of Slurm: ``node03`` for ``node[03-05,7],other``. None if there
    is none."""
    match = re.match(r"([^,\[]*)(?:\[([^\],-]+)[^\]]*\]([^,\[]*))?", hosts.strip())
    if not match or not match.group(0):
        return None
    return match.group(1) + (match.group(2) or "") + (match.group(3) or "")


def _ancestor(command: str) -> str | None:
    """Pid and start time of the nearest ancestor of this process that runs ``command``, or None."""
    pid = os.getpid()
    while pid > 1:
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return None
        # "pid (command) state parent … start time". The command may contain spaces and ")".
        name = text[text.index("(") + 1 : text.rindex(")")]
        fields = text[text.rindex(")") + 2 :].split()
        if name == command[:15]:
            return f"{pid} {fields[19]}"
        pid = int(fields[1])
    return None


# The innermost launcher comes first: horovodrun and torchrun run inside jobs of mpirun and srun,
# never around them.
_LAUNCHERS: dict[str, Callable[[Environment], _Seat | None]] = {
    "horovodrun": _horovodrun,
    "torchrun": _torchrun,
    "mpirun of Open MPI": _open_mpi,
    "mpiexec of MPICH": _mpich,
    "srun": _srun,
}
