"""Many readers at a time, and the usual programs that stress a file system."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

READERS = 8
MODEL_BYTES = 256 << 20

# Maps a file, and touches its pages in an order of its own; then prints a sum.
_MAP = """
import sys
import numpy as np
mapped = np.load(sys.argv[1], mmap_mode="r").reshape(-1, 4096)
order = np.random.default_rng(int(sys.argv[2])).permutation(len(mapped) // 64)
if int(sys.argv[2]) % 2: order.sort()
print(sum(int(mapped[64 * at : 64 * (at + 1)].sum(dtype="u8")) for at in order))
"""
# Loads all tensors of a safetensors file, which the library maps, in several threads.
_LOAD = """
import sys
from concurrent.futures import ThreadPoolExecutor
import safetensors
with safetensors.safe_open(sys.argv[1], "np") as file:
    names = sorted(file.keys(), reverse=int(sys.argv[2]) % 2)
    with ThreadPoolExecutor(4) as pool:
        print(sum(pool.map(lambda name: int(file.get_tensor(name).sum(dtype="u8")), names)))
"""


def run_readers(code: str, path: Path) -> list[int]:
    """What each of the readers has printed, all at a time."""
    readers = [
        subprocess.Popen(
            [sys.executable, "-c", code, path, str(number)],
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
        )
        for number in range(READERS)
    ]
    try:
        return [int(reader.communicate(timeout=120)[0]) for reader in readers]
    finally:
        for reader in readers:
            with reader:
                reader.kill()


@pytest.mark.parametrize("threads", [1, 8])
def test_parallel_readers_of_a_cold_mapped_file(mount: Callable, threads: int) -> None:
    mounted = mount("--threads", threads)
    mounted.ask(f'source.put({{"w": random_bytes({MODEL_BYTES})}})')
    total = mounted.ask('int(source._versions[1][1]["w"].sum(dtype="u8"))')
    assert run_readers(_MAP, mounted.point / "1/w.npy") == [total] * READERS


@pytest.mark.parametrize("threads", [1, 8])
def test_parallel_readers_of_a_cold_safetensors_file(mount: Callable, threads: int) -> None:
    mounted = mount("--threads", threads)
    put = f'source.put({{f"t{{i}}": random_bytes({MODEL_BYTES} // 64, i) for i in range(64)}})'
    mounted.ask(put)
    total = mounted.ask('sum(int(a.sum(dtype="u8")) for a in source._versions[1][1].values())')
    assert run_readers(_LOAD, mounted.point / "1/model.safetensors") == [total] * READERS
    loaded = safetensors.numpy.load_file(mounted.point / "1/model.safetensors")
    assert sum(int(array.sum(dtype="u8")) for array in loaded.values()) == total


def fio(folder: Path, **options: object) -> None:
    words = [f"--{name}={value}" for name, value in options.items()]
    words = ["fio", "--name=job", "--verify=crc32c", "--verify_fatal=1", "--thread", *words]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("engine", ["psync", "mmap", "libaio"])
@pytest.mark.parametrize("pattern", ["write", "randwrite", "randrw"])
def test_fio_verifies_what_it_writes_to_staging(mount, engine: str, pattern: str) -> None:
    staging = mount().point / "staging"
    fio(
        staging,
        ioengine=engine,
        rw=pattern,
        bsrange="4k-256k",
        size="8m",
        numjobs=2,
        fsync=32,
        fallocate="none",
    )


@pytest.mark.parametrize("engine", ["psync", "libaio"])
@pytest.mark.parametrize("pattern", ["read", "randread"])
def test_fio_verifies_a_version(mount, tmp_path: Path, engine: str, pattern: str) -> None:
    """fio's patterns say at which offset of the file they are: the header stays in front. fio's
    engine mmap (3.33) reads at a wrong place if there is an offset, on any file system."""
    size = 32 << 20
    header = 4096
    content = np.zeros(size + header - 128, "u1")
    np.save(tmp_path / "x.npy", content)
    common = {"offset": header, "size": size, "bs": "4k", "filename": "x.npy"}
    fio(
        tmp_path, ioengine="psync", rw="write", do_verify=0, fallocate="none", overwrite=1, **common
    )
    point = mount().point
    subprocess.run(["cp", tmp_path / "x.npy", point / "staging"], check=True)
    os.rename(point / "staging/x.npy", point / "next")
    assert (point / "latest/x.npy").stat().st_size == size + header
    fio(point / "1", ioengine=engine, rw=pattern, numjobs=2, **common)


# Stressors of files and directories that need neither links nor devices. Those of one line run at a
# time.
STRESSORS = """
access chmod chown utime
copy-file fallocate hdd xattr
dentry dir dirmany getdent
dirdeep filename rename fstat
fcntl flock locka lockf lockofd
iomix revio seek sync-file
dup open readahead
"""
_SIZES = (
    "--hdd-bytes 4m --iomix-bytes 4m --readahead-bytes 4m --revio-bytes 4m --sync-file-bytes 4m"
)


@pytest.mark.parametrize("stressors", STRESSORS.strip().splitlines())
def test_stress_ng_in_staging(mount, stressors: str) -> None:
    mounted = mount()
    folder = mounted.point / "staging/stress"
    folder.mkdir()
    command = ["stress-ng", "--timeout", "2", "--verify", "--temp-path", str(folder)]
    command += _SIZES.split()
    for stressor in stressors.split():
        command += [f"--{stressor}", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "failed" not in mounted.log.read_text()
    assert "Traceback" not in mounted.log.read_text()
    assert mounted.stop() == 0
