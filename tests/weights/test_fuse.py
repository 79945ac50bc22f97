"""Reading versions through FUSE."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch

PUT = 'source.put({"w": np.arange(12, dtype="f4").reshape(3, 4), "a/b/c": random_bytes(3 << 20)'


@pytest.fixture
def mounted(mount: Callable) -> object:
    """Version 1 with tensors w, a/b/c, empty; and version 2 with w and bf."""
    made = mount()
    assert made.ask(PUT + ', "empty": np.zeros((0, 3))}, {"step": 10})') == 1
    bf = '"bf": np.arange(8, dtype="u2")'
    assert made.ask(f'source.put({{"w": np.ones(3), {bf}}}, types={{"bf": "bfloat16"}})') == 2
    return made


def random_bytes(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, count, np.uint8)


def error_of(call: Callable, *arguments: object) -> int | None:
    """The errno that a call raises."""
    try:
        call(*arguments)
    except OSError as error:
        return error.errno
    return None


def test_numpy_reads_and_maps(mounted) -> None:
    w = np.arange(12, dtype="f4").reshape(3, 4)
    np.testing.assert_array_equal(np.load(mounted.point / "1/w.npy"), w)
    np.testing.assert_array_equal(np.load(mounted.point / "1/w.npy", mmap_mode="r"), w)
    mapped = np.load(mounted.point / "1/a/b/c.npy", mmap_mode="r")
    np.testing.assert_array_equal(mapped, random_bytes(3 << 20))
    assert np.load(mounted.point / "1/empty.npy").shape == (0, 3)


def test_safetensors_reads_and_maps(mounted) -> None:
    path = mounted.point / "1/model.safetensors"
    loaded = safetensors.numpy.load_file(path)
    assert loaded.keys() == {"w", "a/b/c", "empty"}
    np.testing.assert_array_equal(loaded["a/b/c"], random_bytes(3 << 20))
    with safetensors.safe_open(path, "np") as file:
        assert file.metadata()["version"] == "1"
        np.testing.assert_array_equal(file.get_slice("w")[1:, 2], [6, 10])
    as_torch = safetensors.torch.load_file(mounted.point / "latest/model.safetensors")
    assert as_torch["bf"].dtype == torch.bfloat16
    bf = np.load(mounted.point / "2/bf.npy")
    assert torch.equal(torch.from_numpy(bf).view(torch.bfloat16), as_torch["bf"])
    np.testing.assert_array_equal(
        bf.view(ml_dtypes.bfloat16).astype("f4"), as_torch["bf"].float().numpy()
    )


def test_cp_cmp_and_a_c_program(mounted, tmp_path: Path, c_reader: Path) -> None:
    subprocess.run(["cp", "-r", mounted.point / "1", tmp_path / "copy"], check=True)
    subprocess.run(["diff", "-r", mounted.point / "1", tmp_path / "copy"], check=True)
    np.save(tmp_path / "w.npy", np.arange(12, dtype="f4").reshape(3, 4))
    subprocess.run(["cmp", mounted.point / "1/w.npy", tmp_path / "w.npy"], check=True)
    command = [c_reader, mounted.point / "1/w.npy"]
    assert float(subprocess.run(command, capture_output=True, check=True).stdout) == 66


def test_reads_past_the_cache(mounted, tmp_path: Path) -> None:
    """O_DIRECT, and sendfile()."""
    path = mounted.point / "1/a/b/c.npy"
    command = ["dd", f"if={path}", f"of={tmp_path / 'copy'}", "bs=1M", "iflag=direct"]
    subprocess.run(command, check=True, capture_output=True)
    assert (tmp_path / "copy").read_bytes() == path.read_bytes()
    with open(path, "rb") as file, open(tmp_path / "sent", "wb") as out:
        while os.sendfile(out.fileno(), file.fileno(), None, 1 << 20):
            pass
    assert (tmp_path / "sent").read_bytes() == path.read_bytes()
    with open(path, "rb") as file:
        assert os.pread(file.fileno(), 100, 1 << 30) == b""
        assert len(os.pread(file.fileno(), 100, (3 << 20) + 100)) == 28


def test_names_and_attributes(mounted) -> None:
    assert sorted(os.listdir(mounted.point)) == ["1", "2", "latest", "staging"]
    assert sorted(os.listdir(mounted.point / "1")) == [
        "a",
        "empty.npy",
        "model.safetensors",
        "w.npy",
    ]
    assert os.listdir(mounted.point / "1/a/b") == ["c.npy"]
    assert os.readlink(mounted.point / "latest") == "2"
    found = (mounted.point / "1/w.npy").stat()
    assert stat.S_IMODE(found.st_mode) == 0o444
    assert found.st_size == 128 + 48
    assert abs(found.st_mtime - time.time()) < 60
    assert found.st_uid == os.getuid()
    assert stat.S_IMODE((mounted.point / "1").stat().st_mode) == 0o555
    other = (mounted.point / "2/w.npy").stat()
    assert found.st_ino != other.st_ino
    for name in ["3", "01", "x", "1x", "-1", "1/x", "1/w", "1/a/b/c", "1/w.npy/x", "\udcff"]:
        assert not os.path.lexists(mounted.point / name)


def test_names_in_listings_have_the_inodes_of_the_files(mounted) -> None:
    for folder in (mounted.point, mounted.point / "1", mounted.point / "1/a"):
        for entry in os.scandir(folder):
            assert entry.inode() == entry.stat(follow_symlinks=False).st_ino


def test_a_directory_of_many_tensors(mount) -> None:
    mounted = mount()
    mounted.ask('source.put({f"layer.{i}/" + "w" * 100: np.full(1, i) for i in range(3000)})')
    assert len(os.listdir(mounted.point / "1")) == 3001
    for index in (0, 1234, 2999):
        assert np.load(mounted.point / f"1/layer.{index}" / ("w" * 100 + ".npy"))[0] == index
    loaded = safetensors.numpy.load_file(mounted.point / "1/model.safetensors")
    assert all(array[0] == int(name.split("/")[0][6:]) for name, array in loaded.items())


def test_extended_attributes(mounted) -> None:
    def value(path: str, name: str) -> str:
        return os.getxattr(mounted.point / path, f"user.ringcoll.{name}").decode()

    assert value("1/w.npy", "dtype") == "float32"
    assert value("1/w.npy", "shape") == "[3, 4]"
    assert value("1/a/b/c.npy", "name") == "a/b/c"
    assert value("2/bf.npy", "dtype") == "bfloat16"
    for path in ("1", "1/w.npy", "1/model.safetensors", "1/a"):
        assert value(path, "version") == "1"
        assert value(path, "step") == "10"
        assert json.loads(value(path, "metadata")) == {"step": 10}
    assert "user.ringcoll.step" not in os.listxattr(mounted.point / "2")
    absent = error_of(os.getxattr, mounted.point / "1/w.npy", "user.other")
    assert absent == errno.ENODATA
    command = ["getfattr", "-n", "user.ringcoll.shape", "--only-values", "w.npy"]
    done = subprocess.run(command, cwd=mounted.point / "1", capture_output=True, check=True)
    assert done.stdout == b"[3, 4]"


def test_writes_outside_staging_are_refused(mounted) -> None:
    point = mounted.point
    calls: list[tuple] = [
        (os.open, point / "1/w.npy", os.O_RDWR),
        (os.open, point / "1/w.npy", os.O_WRONLY | os.O_TRUNC),
        (os.open, point / "1/new", os.O_WRONLY | os.O_CREAT),
        (os.open, point / "new", os.O_WRONLY | os.O_CREAT),
        (os.truncate, point / "1/w.npy", 0),
        (os.unlink, point / "1/w.npy"),
        (os.unlink, point / "latest"),
        (os.rmdir, point / "1"),
        (os.rmdir, point / "staging"),
        (os.mkdir, point / "new"),
        (os.mkdir, point / "1/new"),
        (os.chmod, point / "1/w.npy", 0o666),
        (os.utime, point / "1/w.npy", (0, 0)),
        (os.setxattr, point / "1/w.npy", "user.ringcoll.dtype", b"x"),
        (os.removexattr, point / "1/w.npy", "user.ringcoll.dtype"),
        (os.rename, point / "1", point / "7"),
        (os.rename, point / "1/w.npy", point / "1/v.npy"),
        (os.rename, point / "1/w.npy", point / "staging/w.npy"),
        (os.rename, point / "staging", point / "other"),
        (os.symlink, "x", point / "link"),
        (os.link, point / "1/w.npy", point / "staging/w.npy"),
    ]
    for call in calls:
        assert error_of(*call) in (errno.EROFS, errno.EPERM), call
    assert np.load(point / "1/w.npy").shape == (3, 4)


def test_new_versions_are_seen_at_once(mounted) -> None:
    for value in range(3, 30):
        assert mounted.ask(f'source.put({{"w": np.full(2, {value})}})') == value
        assert np.load(mounted.point / "latest/w.npy")[0] == value
        assert str(value) in os.listdir(mounted.point)
        assert np.load(mounted.point / f"{value}/w.npy")[0] == value


def test_a_version_stays_while_a_file_is_open(mount) -> None:
    mounted = mount()
    mounted.ask('source.put({"w": random_bytes(8 << 20), "v": np.zeros(3)})')
    mounted.ask('setattr(source, "keep", 1)')
    with open(mounted.point / "1/w.npy", "rb") as file:
        assert mounted.ask("source.leases") == {"1": 1}
        mapped = np.load(mounted.point / "1/w.npy", mmap_mode="r")
        assert mounted.ask("source.leases") == {"1": 1}
        assert mounted.ask('source.put({"w": np.zeros(3)})') == 2
        np.testing.assert_array_equal(np.load(file), random_bytes(8 << 20))
    assert sorted(os.listdir(mounted.point)) == ["1", "2", "latest", "staging"]
    np.testing.assert_array_equal(mapped, random_bytes(8 << 20))
    del mapped
    end = time.monotonic() + 10
    while mounted.ask("source.leases") and time.monotonic() < end:
        time.sleep(0.01)
    assert sorted(os.listdir(mounted.point)) == ["2", "latest", "staging"]
    assert error_of(open, mounted.point / "1/w.npy") == errno.ENOENT


def test_a_version_taken_away_in_the_middle_is_an_error(mounted) -> None:
    with open(mounted.point / "1/a/b/c.npy", "rb", buffering=0) as file:
        mounted.ask("source.retire(1)")
        assert error_of(os.pread, file.fileno(), 10, 2 << 20) in (errno.ESTALE, errno.EIO)
    assert error_of(open, mounted.point / "1/a/b/c.npy") in (errno.ENOENT, errno.ESTALE)


def test_only_what_is_read_is_pulled(mount) -> None:
    mounted = mount()
    mounted.ask('source.put({"w": random_bytes(64 << 20), "v": random_bytes(64 << 20, 1)})')
    mapped = np.load(mounted.point / "1/w.npy", mmap_mode="r")
    assert mapped[40 << 20] == random_bytes(64 << 20)[40 << 20]
    assert mounted.ask("source.bytes_read") < 20 << 20
    np.testing.assert_array_equal(mapped, random_bytes(64 << 20))
    read = mounted.ask("source.bytes_read")
    assert 64 << 20 <= read < 80 << 20
    # The kernel has kept it, also after it was closed.
    del mapped
    assert np.load(mounted.point / "1/w.npy").sum() == random_bytes(64 << 20).sum()
    assert mounted.ask("source.bytes_read") < read + (8 << 20)


def test_tensors_whose_names_are_no_paths(mount) -> None:
    mounted = mount()
    mounted.ask('source.put({"../x": np.ones(3), "good": np.ones(2), "a//b": np.ones(1)})')
    assert sorted(os.listdir(mounted.point / "1")) == ["good.npy", "model.safetensors"]
    loaded = safetensors.numpy.load_file(mounted.point / "1/model.safetensors")
    assert loaded.keys() == {"../x", "good", "a//b"}
    assert "cannot be a file" in mounted.log.read_text()


def test_two_mounts_at_once(mount) -> None:
    first, second = mount(at="first"), mount(at="second")
    first.ask('source.put({"w": np.full(9, 1)})')
    second.ask('source.put({"w": np.full(9, 2)})')
    (first.point / "staging/x").mkdir()
    assert np.load(first.point / "1/w.npy")[0] == 1
    assert np.load(second.point / "1/w.npy")[0] == 2
    assert os.listdir(second.point / "staging") == []
    assert first.stop() == 0
    assert np.load(second.point / "latest/w.npy")[8] == 2


def test_statfs(mounted) -> None:
    before = os.statvfs(mounted.point)
    assert before.f_bavail > 0
    mounted.ask('source.put({"w": random_bytes(16 << 20)})')
    after = os.statvfs(mounted.point)
    used = (after.f_blocks - after.f_bfree) - (before.f_blocks - before.f_bfree)
    assert used * after.f_frsize >= 15 << 20
    assert after.f_namemax == 255
