"""The staging area: an ordinary directory, and the rename that commits."""

from __future__ import annotations

import errno
import json
import mmap
import os
import stat
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch


@pytest.fixture
def point(mounted) -> Path:
    return mounted.point


@pytest.fixture
def mounted(mount: Callable) -> object:
    return mount()


@pytest.fixture
def staging(point: Path) -> Path:
    return point / "staging"


def error_of(call: Callable, *arguments: object) -> int | None:
    """The errno that a call raises."""
    try:
        call(*arguments)
    except OSError as error:
        return error.errno
    return None


def test_files_are_made_written_and_removed(staging: Path) -> None:
    (staging / "d/e").mkdir(parents=True)
    path = staging / "d/e/f"
    with open(path, "w+b") as file:
        assert file.write(b"x" * (3 << 20)) == 3 << 20
        file.seek(1 << 20)
        file.write(b"yz")
        file.flush()
        os.fsync(file.fileno())
        os.fdatasync(file.fileno())
        assert os.fstat(file.fileno()).st_size == 3 << 20
    content = path.read_bytes()
    assert content == b"x" * (1 << 20) + b"yz" + b"x" * ((2 << 20) - 2)
    with open(path, "ab") as file:
        file.write(b"end")
    assert path.read_bytes() == content + b"end"
    os.truncate(path, 5)
    assert path.read_bytes() == b"xxxxx"
    os.truncate(path, 10)
    assert path.read_bytes() == b"xxxxx" + bytes(5)
    path.write_bytes(b"short")
    assert path.stat().st_size == 5
    assert error_of(os.rmdir, staging / "d/e") == errno.ENOTEMPTY
    assert os.listdir(staging / "d") == ["e"]
    path.unlink()
    (staging / "d/e").rmdir()
    assert os.listdir(staging / "d") == []
    assert error_of(os.unlink, path) == errno.ENOENT


def test_modes_and_times(staging: Path) -> None:
    path = staging / "f"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
    os.write(descriptor, b"1")  # it was opened for writing, whatever the mode is
    os.close(descriptor)
    assert error_of(os.open, path, os.O_CREAT | os.O_EXCL) == errno.EEXIST
    assert stat.S_IMODE(path.stat().st_mode) == 0o400
    path.chmod(0o6755)
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    os.utime(path, ns=(123456789012345678, 987654321012345678))
    found = path.stat()
    assert (found.st_atime_ns, found.st_mtime_ns) == (123456789012345678, 987654321012345678)
    before = time.time()
    os.utime(path)
    assert abs(path.stat().st_mtime - before) < 5
    assert error_of(os.symlink, "/etc/passwd", staging / "l") == errno.EPERM
    assert error_of(os.mkfifo, staging / "p") == errno.EPERM
    assert error_of(os.link, path, staging / "hard") == errno.EPERM


def test_renames_inside(staging: Path) -> None:
    (staging / "a").write_bytes(b"a")
    (staging / "b").write_bytes(b"b")
    (staging / "d").mkdir()
    with open(staging / "b", "rb") as old:
        os.rename(staging / "a", staging / "b")
        assert (staging / "b").read_bytes() == b"a"
        assert old.read() == b"b"
    os.rename(staging / "b", staging / "d/c")
    os.rename(staging / "d", staging / "e")
    assert (staging / "e/c").read_bytes() == b"a"
    assert error_of(os.rename, staging / "e", staging / "e/x") == errno.EINVAL
    (staging / "other").touch()
    subprocess.run(["mv", "-n", staging / "other", staging / "e/c"], check=False)
    assert (staging / "e/c").read_bytes() == b"a"
    assert sorted(os.listdir(staging)) == ["e", "other"]


def test_an_unlinked_file_stays_while_it_is_open(staging: Path) -> None:
    with open(staging / "f", "w+b") as file:
        file.write(b"before")
        (staging / "f").unlink()
        (staging / "f").write_bytes(b"new")
        file.write(b" after")
        file.seek(0)
        assert file.read() == b"before after"
        assert os.fstat(file.fileno()).st_nlink == 0
        os.ftruncate(file.fileno(), 3)
        assert os.fstat(file.fileno()).st_size == 3
    assert (staging / "f").read_bytes() == b"new"


def test_an_open_file_of_a_removed_directory_leaves_nothing(mounted, staging: Path) -> None:
    descriptors = Path(f"/proc/{mounted.process.pid}/fd")
    before = len(os.listdir(descriptors))
    (staging / "d").mkdir()
    with open(staging / "d/f", "w+b", buffering=0) as file, open(staging / "d/f", "rb") as other:
        file.write(b"data")
        subprocess.run(["rm", "-r", staging / "d"], check=True)
        assert os.listdir(staging) == []
        (staging / "d").mkdir()
        file.write(b" more")
        assert other.read() == b"data more"
    end = time.monotonic() + 10  # the server closes files after close() has returned
    while len(os.listdir(descriptors)) > before and time.monotonic() < end:
        time.sleep(0.01)
    assert len(os.listdir(descriptors)) <= before


def test_shared_maps_are_written(staging: Path) -> None:
    with open(staging / "f", "w+b") as file:
        file.truncate(1 << 20)
        with mmap.mmap(file.fileno(), 1 << 20) as memory:
            memory[5000:5005] = b"hello"
            memory.flush()
        assert os.pread(file.fileno(), 5, 5000) == b"hello"
    assert (staging / "f").read_bytes()[5000:5005] == b"hello"


def test_space_can_be_allocated(staging: Path) -> None:
    with open(staging / "f", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, 1 << 20)
        assert os.fstat(file.fileno()).st_size == 1 << 20


def test_extended_attributes_belong_to_a_file(staging: Path) -> None:
    (staging / "f").touch()
    os.setxattr(staging / "f", "user.a", b"1")
    os.setxattr(staging / "f", "user.a", b"2", os.XATTR_REPLACE)
    assert error_of(os.setxattr, staging / "f", "user.a", b"", os.XATTR_CREATE) == errno.EEXIST
    os.rename(staging / "f", staging / "g")
    assert os.getxattr(staging / "g", "user.a") == b"2"
    assert os.listxattr(staging / "g") == ["user.a"]
    os.removexattr(staging / "g", "user.a")
    assert error_of(os.getxattr, staging / "g", "user.a") == errno.ENODATA
    for _ in range(20):
        error = error_of(os.setxattr, staging / "g", f"user.{_}", b"x" * 8000)
    assert error == errno.ENOSPC
    (staging / "g").unlink()
    (staging / "g").touch()
    assert os.listxattr(staging / "g") == []


def test_a_full_disk_is_said(mount, small_disk: Path) -> None:
    staging = mount("--staging", small_disk).point / "staging"
    with open(staging / "f", "wb", buffering=0) as file, pytest.raises(OSError) as error:
        for _ in range(16):
            file.write(b"x" * (1 << 20))
    assert error.value.errno == errno.ENOSPC
    assert os.statvfs(staging).f_bavail * os.statvfs(staging).f_frsize < 1 << 20
    (staging / "f").unlink()
    # The kernel closes the file after close() has returned.
    end = time.monotonic() + 10
    while error_of((staging / "g").write_bytes, b"x" * (1 << 20)) and time.monotonic() < end:
        time.sleep(0.01)
    assert (staging / "g").stat().st_size == 1 << 20


def test_renaming_a_directory_commits_it(mounted, point: Path, staging: Path) -> None:
    (staging / "x/layer").mkdir(parents=True)
    w = np.random.default_rng(0).random((1000, 500))
    np.save(staging / "x/layer/w.npy", w)
    np.save(staging / "x/bf.npy", np.arange(4, dtype="u2"))
    os.setxattr(staging / "x/bf.npy", "user.ringcoll.dtype", b"bfloat16")
    safetensors.torch.save_file(
        {"t": torch.ones(3, dtype=torch.float16)}, staging / "x/m.safetensors"
    )
    os.setxattr(staging / "x", "user.ringcoll.metadata", b'{"loss": 0.5}')
    os.setxattr(staging / "x", "user.ringcoll.step", b"7")
    os.rename(staging / "x", point / "next")
    assert not os.path.lexists(point / "next")
    assert not os.path.lexists(staging / "x")
    assert sorted(os.listdir(point)) == ["1", "latest", "staging"]
    assert os.getxattr(point, "user.ringcoll.committed.next") == b"1"
    assert os.getxattr(point / "latest/model.safetensors", "user.ringcoll.step") == b"7"
    np.testing.assert_array_equal(np.load(point / "latest/layer/w.npy", mmap_mode="r"), w)
    loaded = safetensors.torch.load_file(point / "1/model.safetensors")
    assert loaded["bf"].dtype == torch.bfloat16
    assert loaded["t"].tolist() == [1, 1, 1]
    metadata = json.loads(os.getxattr(point / "1", "user.ringcoll.metadata"))
    assert metadata == {"loss": 0.5, "step": 7}


def test_commits_follow_each_other(point: Path, staging: Path) -> None:
    for step in range(1, 8):
        (staging / "x").mkdir()
        np.save(staging / "x/w.npy", np.full(9, step))
        (staging / "x/metadata.json").write_text(json.dumps({"step": step}))
        subprocess.run(["mv", "-T", staging / "x", point / "next"], check=True)
        assert os.readlink(point / "latest") == str(step)
        assert np.load(point / "latest/w.npy")[0] == step
        assert os.getxattr(point, "user.ringcoll.committed.next") == str(step).encode()


def test_a_single_file_can_be_committed(point: Path, staging: Path) -> None:
    np.save(staging / "w.npy", np.ones(3))
    os.rename(staging / "w.npy", point / "w.npy")
    safetensors.torch.save_file({"v": torch.zeros(2)}, staging / "m.safetensors")
    os.rename(staging / "m.safetensors", point / "whatever")
    assert sorted(os.listdir(point)) == ["1", "2", "latest", "staging"]
    assert np.load(point / "latest/w.npy").sum() == 3
    assert np.load(point / "latest/v.npy").shape == (2,)
    assert not os.listdir(staging)


def test_a_malformed_file_commits_nothing(mounted, point: Path, staging: Path) -> None:
    (staging / "x").mkdir()
    np.save(staging / "x/good.npy", np.ones(3))
    (staging / "x/bad.npy").write_bytes(b"\x93NUMPY\x01\x00nonsense")
    assert error_of(os.rename, staging / "x", point / "next") == errno.EINVAL
    text = os.getxattr(staging / "x", "user.ringcoll.error").decode()
    assert text.startswith("bad.npy: ")
    assert text in mounted.log.read_text()
    assert sorted(os.listdir(point)) == ["staging"]
    (staging / "x/bad.npy").unlink()
    os.rename(staging / "x", point / "next")
    assert os.listdir(point / "latest") == ["model.safetensors", "good.npy"]


def test_a_store_that_refuses_says_why(point: Path, staging: Path) -> None:
    np.save(staging / "w.npy", np.ones(3))
    os.setxattr(staging / "w.npy", "user.ringcoll.metadata", b'{"refuse": "no slices"}')
    assert error_of(os.rename, staging / "w.npy", point / "next") == errno.EINVAL
    text = os.getxattr(staging / "w.npy", "user.ringcoll.error")
    assert text == b"the store refuses: no slices"
    os.setxattr(staging / "w.npy", "user.ringcoll.metadata", b"[]")
    assert error_of(os.rename, staging / "w.npy", point / "next") == errno.EINVAL
    os.removexattr(staging / "w.npy", "user.ringcoll.metadata")
    os.rename(staging / "w.npy", point / "next")


@pytest.mark.parametrize("name", [b"\xff.npy", b".npy", b"notes.txt", b"__metadata__.npy"])
def test_names_that_no_tensor_can_have(point: Path, staging: Path, name: bytes) -> None:
    (staging / "x").mkdir()
    with open(os.path.join(os.fsencode(staging), b"x", name), "wb") as file:
        np.save(file, np.ones(3))
    assert os.listdir(os.fsencode(staging / "x")) == [name]
    assert error_of(os.rename, staging / "x", point / "next") == errno.EINVAL
    assert os.getxattr(staging / "x", "user.ringcoll.error")
    assert os.listdir(point) == ["staging"]


@pytest.mark.parametrize("target", ["17", "latest", "staging", "1", "1/x"])
def test_targets_that_mean_something_else(mounted, point: Path, target: str) -> None:
    mounted.ask('source.put({"w": np.ones(3)})')
    np.save(point / "staging/w.npy", np.zeros(3))
    error = error_of(os.rename, point / "staging/w.npy", point / target)
    assert error in (errno.EEXIST, errno.EINVAL, errno.EROFS, errno.EISDIR, errno.ENOTEMPTY)
    assert np.load(point / "latest/w.npy").sum() == 3
    assert os.listdir(point / "staging") == ["w.npy"]


def test_what_is_committed_does_not_change_meanwhile(mounted, point: Path, staging: Path) -> None:
    (staging / "x").mkdir()
    np.save(staging / "x/w.npy", np.zeros(1000))
    os.setxattr(staging / "x", "user.ringcoll.metadata", b'{"sleep": 1.0}')
    (staging / "y").mkdir()
    with (
        open(staging / "x/w.npy", "r+b", buffering=0) as file,
        mmap.mmap(file.fileno(), 0) as memory,
        open(staging / "y/f", "wb") as other,
    ):
        commit = threading.Thread(target=os.rename, args=(staging / "x", point / "next"))
        commit.start()
        time.sleep(0.4)
        memory[200:300] = b"x" * 100
        assert error_of(memory.flush) in (errno.EBUSY, errno.EIO)
        other.write(b"others go on")
        other.flush()
        assert commit.is_alive()
        # A write waits for the end of the commit. The file is not in the staging area any more, and
        # nobody sees what it becomes.
        os.pwrite(file.fileno(), b"x" * 100, 200)
        commit.join()
        os.pwrite(file.fileno(), b"x" * 100, 200)
    assert (np.load(point / "latest/w.npy") == 0).all()
    assert np.load(point / "latest/w.npy").shape == (1000,)


def test_readers_go_on_while_a_commit_is_slow(mounted, point: Path, staging: Path) -> None:
    mounted.ask('source.put({"w": np.ones(3), "v": np.ones(4)})')
    assert np.load(point / "latest/w.npy").sum() == 3
    np.save(staging / "w.npy", np.zeros(1000))
    os.setxattr(staging / "w.npy", "user.ringcoll.metadata", b'{"sleep": 1.5}')
    commit = threading.Thread(target=os.rename, args=(staging / "w.npy", point / "next"))
    commit.start()
    time.sleep(0.3)
    assert np.load(point / "latest/w.npy").sum() == 3
    assert np.load(point / "latest/v.npy").sum() == 4
    assert commit.is_alive()
    commit.join()
    assert np.load(point / "latest/w.npy").sum() == 0


def test_a_link_in_the_spool_is_not_followed(mount, tmp_path: Path) -> None:
    """Whoever can write to the spool itself cannot make the server read other files."""
    spool = tmp_path / "spool"
    spool.mkdir()
    point = mount("--staging", spool).point
    np.save(tmp_path / "secret.npy", np.ones(3))
    (point / "staging/x").mkdir()
    files = next(spool.iterdir()) / "files"
    (files / "x/w.npy").symlink_to(tmp_path / "secret.npy")
    assert error_of(os.rename, point / "staging/x", point / "next") is not None
    assert os.listdir(point) == ["staging"]


def test_a_copied_version_can_be_committed(mounted, point: Path, staging: Path) -> None:
    mounted.ask('source.put({"w": np.ones(3), "z": np.ones(2, "c16")}, {"step": 4})')
    subprocess.run(["cp", point / "1/model.safetensors", staging], check=True)
    subprocess.run(["mv", staging / "model.safetensors", point / "copy"], check=True)
    assert np.load(point / "2/z.npy").dtype == np.complex128
    assert os.getxattr(point / "2", "user.ringcoll.step") == b"4"


@pytest.mark.parametrize("allow", [True, False])
def test_other_users(mount, allow: bool) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    mounted = mount(*["--allow-other"] * allow)
    mounted.ask('source.put({"w": np.ones(3)})')
    for parent in mounted.point.parents[:3]:
        parent.chmod(0o755)
    script = "cat latest/w.npy > /dev/null && echo read; touch staging/x || echo refused"
    command = ["setpriv", "--reuid", "65534", "--clear-groups", "sh", "-c", f"cd $0; {script}"]
    done = subprocess.run([*command, mounted.point], capture_output=True, text=True, check=False)
    assert done.stdout.split() == (["read", "refused"] if allow else ["refused"])
