"""mpirun over ssh, as the MPI operator of Kubernetes starts jobs: hosts that can be logged in to by
a key, and a launcher that is none of them. Two hosts of two ranks."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import hosts
from support.hosts import Cluster, Host, Network

JOBS = Path(__file__).parent / "jobs"
SSHD = "/usr/sbin/sshd"
PORT = 2222
NETWORK = "10.0.0.0/24"
RANKS = 4

SERVER = """
Port {port}
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PidFile none
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
"""
CLIENT = """
Host *
  Port {port}
  User root
  IdentityFile {folder}/user
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known
  StrictHostKeyChecking yes
  BatchMode yes
"""


def write_keys(folder: Path) -> None:
    for name in ("host", "user"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name]
        subprocess.run(command, check=True)
    key = (folder / "host.pub").read_text()
    (folder / "known").write_text(f"[h1]:{PORT} {key}[h2]:{PORT} {key}")
    (folder / "server").write_text(SERVER.format(port=PORT, folder=folder))
    (folder / "client").write_text(CLIENT.format(port=PORT, folder=folder))


def start_sshd(host: Host, folder: Path) -> subprocess.Popen[bytes]:
    """sshd on a host, with a /run of its own for the folder that it wants there."""
    own = f"mount -t tmpfs tmpfs /run && mkdir /run/sshd && exec {SSHD} -D -e -f {folder}/server"
    log = open(folder / f"{host.name}.log", "wb")  # noqa: SIM115
    with log:
        return subprocess.Popen(host.command(["sh", "-c", own]), stdout=log, stderr=log)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    if reason := hosts.missing():
        pytest.skip(reason)
    if not Path(SSHD).exists() or not shutil.which("mpirun"):
        pytest.skip("not installed: openssh-server, or mpirun")
    write_keys(tmp_path)
    with Cluster(2, [Network()]) as made:
        servers = [start_sshd(host, tmp_path) for host in made.hosts]
        for host in made.hosts:
            wait_for_login(made, host, tmp_path)
        yield made
        for server in servers:
            server.kill()
            server.wait()


def wait_for_login(made: Cluster, host: Host, folder: Path) -> None:
    end = time.monotonic() + 30
    command = made.head.command(["ssh", "-F", f"{folder}/client", host.name, "hostname"])
    while True:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            assert done.stdout.strip() == host.name
            return
        log = (folder / f"{host.name}.log").read_text()
        assert time.monotonic() < end, f"{done.stderr}\n{log}"
        time.sleep(0.1)


def mpirun(cluster: Cluster, folder: Path, *words: object, **variables: str) -> list[str]:
    """mpirun on the head, as docs/cluster.md has it."""
    named = {"PYTHONPATH": str(JOBS), "OMP_NUM_THREADS": "1", **variables}
    passed = [word for name, value in named.items() for word in ("-x", f"{name}={value}")]
    command = ["mpirun", "--allow-run-as-root", "-np", str(RANKS), "-H", "h1:2,h2:2"]
    command += ["--bind-to", "none", "--mca", "plm_rsh_args", f"-F {folder}/client"]
    command += ["--mca", "oob_tcp_if_include", NETWORK, "--mca", "btl_tcp_if_include", NETWORK]
    return cluster.head.command([*command, *passed, sys.executable, *map(str, words)], folder)


def test_training(cluster, tmp_path, run_job, check):
    weights = {}
    for backend in ("RINGCOLL", "MPI"):
        output = tmp_path / backend
        output.mkdir()
        command = mpirun(
            cluster, tmp_path, JOBS / "under_mpi.py", output, HOROVOD_CPU_OPERATIONS=backend
        )
        run_job(command)
        facts = [json.loads(path.read_text()) for path in sorted(output.iterdir())]
        weights[backend] = check(facts, backend, RANKS)
        assert [each["host"] for each in facts] == ["h1", "h1", "h2", "h2"]
        assert [each["local_size"] for each in facts] == [2] * RANKS
    assert weights["RINGCOLL"] == pytest.approx(weights["MPI"], rel=1e-5, abs=1e-6)


def test_doctor(cluster, tmp_path, run_job):
    words = ["-P", "-m", "ringcoll", "doctor"]
    text = run_job(mpirun(cluster, tmp_path, *words, RINGCOLL_STORE="tcp://h1:20001"))
    for part in ("mpirun of Open MPI: rank 0 of 4", "│ h1", "│ h2", "All hosts are well."):
        assert part in text, text


def test_probe(cluster, tmp_path, run_job):
    words = ["-P", "-m", "ringcoll", "probe", "--output", tmp_path / "topology.json"]
    text = run_job(mpirun(cluster, tmp_path, *words, RINGCOLL_STORE="tcp://h1:20002"))
    assert "2 hosts: there is nothing to find" in text, text
    assert list(json.loads((tmp_path / "topology.json").read_text())) == ["h1", "h2"]


def test_doctor_asks_for_a_meeting_place(cluster, tmp_path):
    command = mpirun(cluster, tmp_path, "-P", "-m", "ringcoll", "doctor", "--json")
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done
    # Rank 0 alone prints.
    [wrong] = [each for each in json.loads(done.stdout)["findings"] if each["status"] == "failed"]
    assert wrong["part"] == "launcher" and "mpirun -x RINGCOLL_STORE=tcp://" in wrong["detail"]
