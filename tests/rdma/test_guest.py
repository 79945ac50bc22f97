"""ci/rdma-vm itself: what a command gets, and how it ends."""

import time


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


def test_timeout_ends_it(rdma_vm):
    start = time.monotonic()
    done = rdma_vm(["sh", "-c", "echo begun; sleep 1000"], timeout=2)
    assert done.returncode == 124
    assert done.stdout == "begun\n"
    assert "did not end in 2 s" in done.stderr
    assert time.monotonic() - start < 150
