"""Versions as plain files."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from ringcoll import InvalidArgument
from ringcoll.weights import export
from ringcoll.weights.export import DiskFull, Exporter, Occupied
from ringcoll.weights.formats import Manifest, Tensor

Arrays = dict[str, np.ndarray]


def manifest_of(arrays: Arrays, version: int = 1) -> Manifest:
    tensors = (Tensor(name, array.dtype.name, array.shape) for name, array in arrays.items())
    return Manifest(version, tuple(tensors))


def put(exporter: Exporter, arrays: Arrays, version: int = 1, latest: bool = True) -> Path:
    def fill(name: str, view: memoryview) -> None:
        view[:] = arrays[name].tobytes()

    return exporter.export(manifest_of(arrays, version), fill, latest)


def hidden(folder: Path) -> list[str]:
    names = (path.name for path in folder.iterdir())
    return [name for name in names if name.startswith(".") and name != ".ringcoll-exporter"]


@pytest.fixture
def arrays() -> Arrays:
    random = np.random.default_rng(0)
    return {
        "w": random.random((300, 7), "f4"),
        "layer/0/b": random.random(11),
        "scalar": np.array(3, "i8"),
        "empty": np.zeros((0, 2), "f4"),
    }


def test_numpy_and_safetensors_read_the_files(tmp_path: Path, arrays: Arrays) -> None:
    with Exporter(tmp_path / "out") as exporter:
        folder = put(exporter, arrays)
    for name, array in arrays.items():
        mapped = np.load(folder / f"{name}.npy", mmap_mode="r" if array.size else None)
        np.testing.assert_array_equal(mapped, array)
    loaded = safetensors.numpy.load_file(tmp_path / "out/latest/model.safetensors")
    assert loaded.keys() == arrays.keys()
    with safetensors.safe_open(folder / "model.safetensors", "np") as file:
        assert file.metadata()["version"] == "1"
        np.testing.assert_array_equal(file.get_tensor("w"), arrays["w"])


def test_cp_cmp_and_a_c_program_read_the_files(
    tmp_path: Path, arrays: Arrays, c_reader: Path
) -> None:
    with Exporter(tmp_path / "out") as exporter:
        folder = put(exporter, {"ones": np.ones(1000, "f4"), **arrays})
    subprocess.run(["cp", "-r", folder, tmp_path / "copy"], check=True)
    subprocess.run(["diff", "-r", folder, tmp_path / "copy"], check=True)
    np.save(tmp_path / "w.npy", arrays["w"])
    subprocess.run(["cmp", folder / "w.npy", tmp_path / "w.npy"], check=True)
    done = subprocess.run([c_reader, folder / "ones.npy"], capture_output=True, check=True)
    assert float(done.stdout) == 1000


@pytest.mark.parametrize("formats", [("npy",), ("safetensors",)])
def test_one_form_only(tmp_path: Path, arrays: Arrays, formats: tuple[str, ...]) -> None:
    with Exporter(tmp_path / "out", formats) as exporter:
        folder = put(exporter, arrays)
    assert (folder / "w.npy").exists() == ("npy" in formats)
    assert (folder / "model.safetensors").exists() == ("safetensors" in formats)


def test_each_tensor_is_filled_once_in_memory_of_the_file(tmp_path: Path) -> None:
    with Exporter(tmp_path) as exporter:
        data = np.arange(10, dtype="u1")
        with exporter.begin(manifest_of({"a": data, "b": data})) as draft:
            assert list(draft.targets) == ["a", "b"]
            for view in draft.targets.values():
                view[:] = data
            assert exporter.versions() == []
            folder = draft.publish()
        np.testing.assert_array_equal(np.load(folder / "b.npy"), data)
        loaded = safetensors.numpy.load_file(folder / "model.safetensors")
        np.testing.assert_array_equal(loaded["b"], data)


def test_a_failed_fill_leaves_nothing(tmp_path: Path, arrays: Arrays) -> None:
    def fill(name: str, view: memoryview) -> None:
        raise ConnectionError("lost")

    with Exporter(tmp_path) as exporter:
        put(exporter, arrays, 1)
        with pytest.raises(ConnectionError):
            exporter.export(manifest_of(arrays, 2), fill)
        assert exporter.versions() == [1]
        assert exporter.latest() == 1
    assert not hidden(tmp_path)


def test_latest_switches_and_old_versions_go(tmp_path: Path, arrays: Arrays) -> None:
    with Exporter(tmp_path) as exporter:
        for version in (1, 2, 3):
            put(exporter, arrays, version)
        put(exporter, arrays, 4, latest=False)
        assert os.readlink(tmp_path / "latest") == "3"
        with pytest.raises(InvalidArgument, match="is latest"):
            exporter.remove(3)
        exporter.remove(1)
        assert exporter.versions() == [2, 3, 4]
        exporter.retain([2])
        assert exporter.versions() == [2]
        assert exporter.latest() == 2
        exporter.remove(2)
        assert exporter.versions() == []
        assert exporter.latest() is None
    assert not hidden(tmp_path)


def test_readers_of_a_removed_version_go_on(tmp_path: Path, arrays: Arrays) -> None:
    with Exporter(tmp_path) as exporter:
        put(exporter, arrays, 1)
        mapped = np.load(tmp_path / "1/w.npy", mmap_mode="r")
        with open(tmp_path / "1/layer/0/b.npy", "rb") as file:
            put(exporter, {"w": np.zeros(3)}, 2)
            exporter.remove(1)
            assert not (tmp_path / "1").exists()
            np.testing.assert_array_equal(mapped, arrays["w"])
            np.testing.assert_array_equal(np.load(file), arrays["layer/0/b"])


def test_a_version_of_an_earlier_run_is_replaced(tmp_path: Path, arrays: Arrays) -> None:
    with Exporter(tmp_path) as exporter:
        put(exporter, arrays, 1)
    with Exporter(tmp_path) as exporter:
        assert exporter.versions() == [1]
        put(exporter, {"other": np.zeros(3)}, 1)
    assert sorted(os.listdir(tmp_path / "1")) == ["model.safetensors", "other.npy"]


def test_a_directory_has_one_exporter(tmp_path: Path) -> None:
    with Exporter(tmp_path), pytest.raises(InvalidArgument, match="another process"):
        Exporter(tmp_path)
    with pytest.raises(InvalidArgument, match="choose from"):
        Exporter(tmp_path, ["csv"])


def test_an_exporter_knows_whether_the_versions_are_its_owners(tmp_path: Path) -> None:
    for owner, goes_on in [("one", False), ("one", True), ("other", False), ("", False)]:
        with Exporter(tmp_path, owner=owner) as exporter:
            assert exporter.goes_on == goes_on
            with pytest.raises(Occupied) as caught:
                Exporter(tmp_path, owner="third")
            assert caught.value.owner == owner


_KILLED = """
import sys, time
from ringcoll.weights.export import Exporter
from ringcoll.weights.formats import Manifest, Tensor
def fill(name, view):
    view[:1] = b"x"
    print("filling", flush=True)
    time.sleep(60)
Exporter(sys.argv[1]).export(Manifest(5, (Tensor("w", "uint8", (1 << 20,)),)), fill)
"""


def test_what_a_killed_exporter_left_is_removed(tmp_path: Path, arrays: Arrays) -> None:
    command = [sys.executable, "-c", _KILLED, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd="/") as process:
        assert process.stdout.readline() == b"filling\n"
        process.kill()
    assert len(hidden(tmp_path)) == 1
    (tmp_path / ".bashrc").touch()  # nothing of an exporter
    with Exporter(tmp_path) as exporter:
        assert hidden(tmp_path) == [".bashrc"]
        put(exporter, arrays)


def test_a_disk_too_small_is_said_before(small_disk: Path, arrays: Arrays) -> None:
    with Exporter(small_disk) as exporter:
        put(exporter, arrays, 1)
        with pytest.raises(DiskFull, match="needs 13 MiB"):
            put(exporter, {"w": np.zeros(6 << 20, "u1")}, 2)
        assert exporter.versions() == [1]
        put(exporter, {"w": np.zeros(1 << 20, "u1")}, 2)
    assert not hidden(small_disk)


def test_a_disk_that_becomes_full_leaves_nothing(
    small_disk: Path, arrays: Arrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if another program took the space after the look at it.
    monkeypatch.setattr(Exporter, "_check_space", lambda self, wanted: None)
    with Exporter(small_disk) as exporter:
        put(exporter, arrays, 1)
        with pytest.raises(DiskFull, match="became full") as error:
            put(exporter, {"w": np.zeros(6 << 20, "u1")}, 2)
        assert isinstance(error.value.__cause__, OSError)
        assert error.value.__cause__.errno == errno.ENOSPC
        assert exporter.versions() == [1]
        assert exporter.latest() == 1
        assert not hidden(small_disk)
        put(exporter, {"w": np.zeros(1 << 20, "u1")}, 2)


@pytest.mark.parametrize(
    "name", ["../x", "/tmp/x", "a/../../x", "x\0", "y" * 300, "model.safetensors/x"]
)
def test_names_cannot_leave_the_directory(tmp_path: Path, name: str) -> None:
    with Exporter(tmp_path / "in") as exporter:
        with pytest.raises(InvalidArgument, match="cannot be a file"):
            put(exporter, {name: np.zeros(3)})
        assert exporter.versions() == []
        assert not hidden(exporter.directory)
    assert os.listdir(tmp_path) == ["in"]


def test_links_in_the_directory_are_not_followed(tmp_path: Path, arrays: Arrays) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "out"
    victim.mkdir()
    (victim / "file").touch()
    folder.mkdir()
    (folder / "1").symlink_to(victim)
    (folder / ".2.tmp-0123456789abcdef").symlink_to(victim)
    (folder / "latest").symlink_to(victim)
    with Exporter(folder) as exporter:
        put(exporter, arrays)
    assert os.listdir(victim) == ["file"]
    assert not (folder / "1").is_symlink()
    (folder / ".ringcoll-exporter").unlink()
    (folder / ".ringcoll-exporter").symlink_to(victim / "file")
    with pytest.raises(OSError):
        Exporter(folder)


def test_a_reader_that_polls_latest_sees_whole_versions(tmp_path: Path) -> None:
    """A reader in a loop finds in each version only that version's values."""
    code = (
        "import os, sys, numpy as np\n"
        "seen = 0\n"
        "while seen < 40:\n"
        "    folder = os.path.realpath(sys.argv[1])\n"
        "    try: both = [np.load(f'{folder}/{name}.npy') for name in 'ab']\n"
        "    except FileNotFoundError: continue\n"
        "    seen = int(both[0][0])\n"
        "    assert all((array == seen).all() for array in both), seen\n"
    )
    with Exporter(tmp_path) as exporter:
        arrays = {"a": np.zeros(5000), "b": np.zeros(70000)}
        put(exporter, arrays, 0)
        command = [sys.executable, "-c", code, tmp_path / "latest"]
        with subprocess.Popen(command, cwd="/") as reader:
            for version in range(1, 41):
                put(exporter, {name: array + version for name, array in arrays.items()}, version)
                exporter.remove(version - 1)
                time.sleep(0.005)
            assert reader.wait(30) == 0


def test_modes_of_the_files(tmp_path: Path, arrays: Arrays) -> None:
    with Exporter(tmp_path) as exporter:
        folder = put(exporter, arrays)
    assert folder.stat().st_mode & 0o777 == 0o755
    assert (folder / "w.npy").stat().st_mode & 0o777 == 0o444
    assert export.FORMATS == ("npy", "safetensors")
