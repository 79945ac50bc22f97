"""ci/rdma-vm itself: what a command gets, and how it ends."""

import os
import re
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support import vm

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


def test_barriers_of_a_single_processor_are_kept(tmp_path, endless):
    """Its devices are emulated by another thread: without barriers, cables die by chance."""
    endless.result(150)  # QEMU is there
    fence = bytes([0x0F, 0xAE, 0xF0, 0xEB, 0xFB])  # mfence, and again
    (tmp_path / "disk").write_bytes(fence.ljust(510, b"\0") + b"\x55\xaa")
    made = tmp_path / "made"  # what QEMU makes of the boot sector, which the BIOS puts at 0x7c00
    command = ["qemu-system-x86_64", "-nodefaults", "-display", "none", "-machine", "pc"]
    command += vm.processors(vm.Options(command=[], cpus=1))
    command += ["-drive", "file=disk,format=raw,if=ide"]
    command += ["-d", "in_asm,op", "-dfilter", "0x7c00+0x10", "-D", str(made)]
    machine = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 60
        while not made.exists() or "exit_tb" not in (text := made.read_text()):
            assert machine.poll() is None
            assert time.monotonic() < end, "the boot sector does not run"
            time.sleep(0.05)
    finally:
        machine.kill()
        machine.wait()
    assert "mfence" in text
    assert re.search(r"^ mb ", text, re.MULTILINE), text
