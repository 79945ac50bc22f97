"""ci/rdma-vm itself: what a command gets, and how it ends."""

import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

CI = Path(__file__).resolve().parent.parent.parent / "ci"


@pytest.fixture(scope="module")
def endless(rdma_vm):
    """How a guest ended whose command does not; it boots beside that of the other test."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(rdma_vm, ["sh", "-c", "echo begun; sleep 1000"], timeout=2)


@pytest.mark.usefixtures("endless")
def test_output_status_and_folder(rdma_vm, tmp_path):
    script = (
        'echo "$V"; echo trouble >&2; printf "no newline" >/dev/stdout; whoami >"$0/who"; '
        "sleep 60 & kill -KILL $$"
    )
    done = rdma_vm(["bash", "-c", script, str(tmp_path)], out=tmp_path, env=["V=a  b"])
    assert done.returncode == 128 + 9
    assert done.stdout == "a  b\nno newline"
    assert "trouble\n" in done.stderr
    assert (tmp_path / "who").read_text() == "root\n"


def test_timeout_ends_it(endless):
    done = endless.result(150)
    assert done.returncode == 124
    assert done.stdout == "begun\n"
    assert "did not end in 2 s" in done.stderr


def _machines(parent):
    """Its children that have become QEMU."""
    pids = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [pid for pid in pids if Path(f"/proc/{pid}/comm").read_text().startswith("qemu")]


def test_stopped_while_it_boots(tmp_path):
    """Nothing of it is left: no process, no file."""
    command = [CI / "rdma-vm", "--guests", "2", "--", "true"]
    tool = subprocess.Popen(
        command, stderr=subprocess.DEVNULL, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    while tool.poll() is None and len(guests := _machines(tool.pid)) < 2:
        time.sleep(0.02)
    if tool.poll() == 77:
        pytest.skip("rdma-vm cannot boot a guest")
    assert list(tmp_path.iterdir())
    tool.send_signal(signal.SIGTERM)
    assert tool.wait(30) == 128 + signal.SIGTERM
    assert not [pid for pid in guests if Path(f"/proc/{pid}").exists()]
    assert not list(tmp_path.iterdir())
