"""Who am I: rank, size and store, from the variables that a job's launcher sets.

Known are horovodrun, torchrun, mpirun of Open MPI and of MPICH (also Intel MPI), and srun. Each
tells rank and size. The store, where ranks find each other, is the launcher's own if it has one,
else derived from what all ranks of the job and nobody else can know; ``RINGCOLL_STORE`` overrides
it.
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

# Ports of derived tcp:// stores: below those that Linux gives to outgoing connections (32768 and
# up), and clear of torch's usual 29400 and 29500, so that only another listener can be in the way.
_FIRST_PORT = 20000
_PORTS = 9000


@dataclass(frozen=True)
class Job:
    """A process's place in a job."""

    rank: int
    size: int
    store: str
    launcher: str
    derived: bool  # nobody named the store

    def tidy(self) -> None:
        """Removes the directory that was made for a derived store, once it is empty."""
        if self.derived and self.store.startswith("file://"):
            with contextlib.suppress(OSError):
                Path(self.store.removeprefix("file://")).rmdir()


@dataclass(frozen=True)
class _Seat:
    """What a launcher says. ``store`` is called only if nobody named one: it may make a
    directory."""

    rank: int
    size: int
    store: Callable[[], str]


class _Incomplete(InvalidArgument):
    """A launcher that says the one of rank and size and not the other."""


def find_job(
    rank: int | None = None,
    size: int | None = None,
    store: str | None = None,
    environ: Environment | None = None,
) -> Job:
    """The place of this process: what the arguments say, completed from the environment
    (``os.environ``).

    Started alone, without a launcher, a process is rank 0 of 1. Raises InvalidArgument if a
    variable has no sense, if only one of rank and size is given, by arguments or by a launcher, or
    if no store is known, with what to set.
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
    """Of the first launcher that says all. One that says the half is an error if nobody says all
    and the seat is required: as rank 0 of 1 a job would compute something else, silently."""
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
    """Of a launcher's variables for the rank and for the size the one that has the size; None if
    neither is set."""
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
    """A directory of this user, the same for all ranks of a job on one host. Made if it is not
    there.

    Raises InvalidArgument if the name is taken by something that others could write to.
    """
    import hashlib  # here, as what they load would be a tenth of an import of ringcoll
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
        # torch itself listens on MASTER_PORT, and a second job often on the next one; so the port
        # is derived from all that tells this job (and its restarts) from others.
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
        # mpirun removes its session directory at the end, whatever happens to the ranks.
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
    # An allocation alone has the number of tasks, and a batch script SLURM_PROCID.
    if not {"SLURM_PROCID", "SLURM_STEP_ID"} <= environ.keys():
        return None
    size_name = _says(environ, "srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    assert size_name  # the rank is there
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
    """The first name of a list as Slurm writes it: ``node[03-05,7],other`` begins with
    ``node03``."""
    match = re.match(r"([^,\[]*)(?:\[([^\],-]+)[^\]]*\]([^,\[]*))?", hosts.strip())
    if not match or not match.group(0):
        return None
    return match.group(1) + (match.group(2) or "") + (match.group(3) or "")


def _ancestor(command: str) -> str | None:
    """Id and start time of the nearest process above this one that runs ``command``."""
    pid = os.getpid()
    while pid > 1:
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return None
        # "pid (command) state parent … start time": the command may hold anything, ")" too.
        name = text[text.index("(") + 1 : text.rindex(")")]
        fields = text[text.rindex(")") + 2 :].split()
        if name == command[:15]:
            return f"{pid} {fields[19]}"
        pid = int(fields[1])
    return None


# The innermost first: jobs of horovodrun and torchrun run inside those of mpirun and srun, not
# around them.
_LAUNCHERS: dict[str, Callable[[Environment], _Seat | None]] = {
    "horovodrun": _horovodrun,
    "torchrun": _torchrun,
    "mpirun of Open MPI": _open_mpi,
    "mpiexec of MPICH": _mpich,
    "srun": _srun,
}
