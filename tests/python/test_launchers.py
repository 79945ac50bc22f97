"""``ringcoll.init()`` without arguments, under real launchers."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import ringcoll, numpy, os
world = ringcoll.init()
total = world.allreduce(numpy.full(5, world.rank + 1.0))
assert total.tolist() == [sum(range(1, world.size + 1))] * 5
os.write(1, f"rank {world.rank} of {world.size} is well\\n".encode())  # whole lines
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def launch(command: list[str], folder: Path) -> str:
    script = folder / "job.py"
    script.write_text(SCRIPT)
    env = {**os.environ, "TMPDIR": str(folder), "RINGCOLL_TIMEOUT_S": "20", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(script)], env=env, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_mpirun(tmp_path):
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        pytest.skip("mpirun is not installed")
    output = launch(
        [mpirun, "--allow-run-as-root", "--oversubscribe", "-np", "3", sys.executable], tmp_path
    )
    assert sorted(output.split("\n"))[1:] == [f"rank {rank} of 3 is well" for rank in range(3)]


def test_mpiexec_of_mpich(tmp_path):
    """What matters of it: the variables, and a process named hydra_pmi_proxy above the ranks."""
    proxy = tmp_path / "hydra_pmi_proxy"
    proxy.symlink_to("/bin/bash")
    ranks = " ".join(f'PMI_RANK={rank} "$@" & one{rank}=$!;' for rank in range(2))
    start = f"export PMI_SIZE=2 MPI_LOCALNRANKS=2; {ranks} wait $one0 && wait $one1"
    output = launch([str(proxy), "-c", start, "proxy", sys.executable], tmp_path)
    assert sorted(output.splitlines()) == ["rank 0 of 2 is well", "rank 1 of 2 is well"]
    assert not list(tmp_path.glob("ringcoll-*"))


def test_torchrun(tmp_path):
    pytest.importorskip("torch")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    output = launch([*torchrun, "--master-port", str(free_port())], tmp_path)
    assert "rank 0 of 2 is well" in output and "rank 1 of 2 is well" in output
    assert not list(tmp_path.glob("ringcoll-*"))


def test_by_hand_over_tcp(tmp_path):
    script = tmp_path / "job.py"
    call = f"init(int(sys.argv[1]), 2, 'tcp://127.0.0.1:{free_port()}')"
    script.write_text("import sys" + SCRIPT.replace("init()", call))
    ranks = [
        subprocess.Popen([sys.executable, str(script), str(rank)], stdout=subprocess.PIPE)
        for rank in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=60)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert outputs == [b"rank 0 of 2 is well\n", b"rank 1 of 2 is well\n"]
