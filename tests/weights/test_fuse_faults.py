"""A mount whose server, source or user goes away."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

BIG = 'source.put({"w": random_bytes(64 << 20)})'


def error_of(call: Callable, *arguments: object) -> int | None:
    """The errno that a call raises."""
    try:
        call(*arguments)
    except OSError as error:
        return error.errno
    return None


def seconds(call: Callable, *arguments: object) -> tuple[int | None, float]:
    start = time.monotonic()
    return error_of(call, *arguments), time.monotonic() - start


def is_mounted(point: Path) -> bool:
    return f" {point} " in Path("/proc/self/mountinfo").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_unmounts(mount, number: int) -> None:
    mounted = mount()
    mounted.ask('source.put({"w": np.ones(3)})')
    (mounted.point / "staging/x").touch()
    assert mounted.stop(number) == 0
    assert not is_mounted(mounted.point)
    assert os.listdir(mounted.point) == []


def test_nothing_of_the_staging_area_is_left(mount, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    mounted = mount("--staging", spool)
    (mounted.point / "staging/x").write_bytes(b"x")
    assert len(os.listdir(spool)) == 1
    other = mount("--staging", spool, at="other")
    assert len(os.listdir(spool)) == 2
    mounted.kill()
    assert len(os.listdir(spool)) == 2
    third = mount("--staging", spool, at="third")
    assert len(os.listdir(spool)) == 2
    assert other.stop() == third.stop() == 0
    assert os.listdir(spool) == []


def test_umount_ends_the_server(mount) -> None:
    mounted = mount()
    subprocess.run(["umount", mounted.point], check=True)
    assert mounted.process.wait(10) == 0


def test_umount_while_in_use(mount) -> None:
    mounted = mount()
    mounted.ask(BIG)
    with open(mounted.point / "1/w.npy", "rb") as file:
        busy = subprocess.run(["umount", mounted.point], capture_output=True, check=False)
        assert busy.returncode != 0
        mapped = np.load(mounted.point / "1/w.npy", mmap_mode="r")
        subprocess.run(["umount", "-l", mounted.point], check=True)
        assert not os.path.lexists(mounted.point / "1")
        whole = np.load(file)
        np.testing.assert_array_equal(mapped, whole)
        assert mounted.process.poll() is None
    del mapped
    assert mounted.process.wait(10) == 0


def test_a_signal_serves_open_files_a_while(mount) -> None:
    mounted = mount()
    mounted.ask(BIG)
    with open(mounted.point / "1/w.npy", "rb") as file:
        mounted.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert not is_mounted(mounted.point)
        assert len(file.read()) > 64 << 20
        assert mounted.process.poll() is None
        mounted.process.send_signal(signal.SIGTERM)  # the second one ends it
        assert mounted.process.wait(2) == 0
        assert error_of(os.pread, file.fileno(), 1, 0) in (errno.ENOTCONN, errno.ECONNABORTED, None)


def test_a_killed_server_is_an_error_and_can_be_mounted_again(mount) -> None:
    mounted = mount()
    mounted.ask(BIG)
    with open(mounted.point / "1/w.npy", "rb") as file:
        mounted.kill()
        assert error_of(file.read) in (errno.ENOTCONN, errno.ECONNABORTED)
        assert error_of(os.listdir, mounted.point) == errno.ENOTCONN
        again = mount()
        again.ask('source.put({"w": np.ones(3)})')
        assert np.load(mounted.point / "latest/w.npy").sum() == 3
    assert again.stop() == 0
    assert not is_mounted(mounted.point)


_READ = """
import os, sys
file = os.open(sys.argv[1], os.O_RDONLY)
print("reading", flush=True)
try:
    while os.read(file, 1 << 20): pass
    print("end")
except OSError as error: print(error.errno)
"""


def test_a_server_killed_in_the_middle_of_reads(mount) -> None:
    mounted = mount()
    mounted.ask(BIG)
    mounted.ask("source.stuck.set()")  # so that the readers are surely in the middle
    mounted.ask("source.stuck.clear()")
    readers = []
    for _ in range(4):
        command = [sys.executable, "-c", _READ, mounted.point / "1/w.npy"]
        readers.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd="/"))
    assert [reader.stdout.readline() for reader in readers] == ["reading\n"] * 4
    mounted.kill()
    for reader in readers:
        with reader:
            said = reader.stdout.read().strip()  # also what readline() has buffered
        assert said in ("end", str(errno.ENOTCONN), str(errno.ECONNABORTED), str(errno.EIO))


def test_a_mapping_of_a_killed_server_is_a_bus_error(mount) -> None:
    mounted = mount()
    mounted.ask(BIG)
    code = (
        "import numpy as np, sys\n"
        "mapped = np.load(sys.argv[1], mmap_mode='r')\n"
        "print(mapped[0], flush=True); sys.stdin.readline(); print(mapped.sum())"
    )
    command = [sys.executable, "-c", code, mounted.point / "1/w.npy"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/"
    ) as reader:
        reader.stdout.readline()
        mounted.kill()
        reader.communicate("\n", timeout=10)
    assert reader.returncode == -signal.SIGBUS


def test_a_lost_source_is_an_error_at_once(mount) -> None:
    mounted = mount("--timeout", 2)
    mounted.ask(BIG)
    with open(mounted.point / "1/w.npy", "rb", buffering=0) as file:
        mounted.ask('setattr(source, "lost", True)')
        for call in (file.read, lambda: os.listdir(mounted.point)):
            error, took = seconds(call)
            assert error == errno.EIO
            assert took < 1
        (mounted.point / "staging/x").write_bytes(b"staging goes on")
        mounted.ask('setattr(source, "lost", False)')
        assert len(file.read()) > 64 << 20
    assert np.load(mounted.point / "latest/w.npy").shape == (64 << 20,)


def test_a_source_that_stops_answering_is_an_error_within_seconds(mount) -> None:
    mounted = mount("--timeout", 1, "--threads", 2)
    mounted.ask(BIG)
    with contextlib.ExitStack() as files:
        opened = [files.enter_context(open(mounted.point / "1/w.npy", "rb", 0)) for _ in range(6)]
        mounted.ask("source.stuck.set()")
        results: list[tuple[int | None, float]] = []
        threads = [
            threading.Thread(
                target=lambda file=file, at=at: results.append(
                    seconds(os.pread, file.fileno(), 10, at * (9 << 20))
                )
            )
            for at, file in enumerate(opened)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert [error for error, _ in results] == [errno.EIO] * 6
        assert max(took for _, took in results) < 4
        # Now it is known to be lost: no one waits, but who tries once a second.
        took = [seconds(os.listdir, mounted.point)[1] for _ in range(5)]
        assert sorted(took)[2] < 0.2
        (mounted.point / "staging/x").write_bytes(b"staging goes on")
        mounted.ask("source.stuck.clear()")
        mounted.ask("source.go_on.set()")
        end = time.monotonic() + 10
        while error_of(os.listdir, mounted.point) and time.monotonic() < end:
            time.sleep(0.1)
        assert len(opened[0].read()) > 64 << 20
    # What was opened for those who had given up does not keep the version.
    end = time.monotonic() + 10
    while mounted.ask("source.leases") and time.monotonic() < end:
        time.sleep(0.05)
    assert mounted.ask("source.leases") == {}
    assert mounted.stop() == 0


def test_an_open_that_was_given_up_leaves_no_lease(mount) -> None:
    mounted = mount("--timeout", 1)
    mounted.ask(BIG)
    (mounted.point / "1/w.npy").stat()
    mounted.ask("source.stuck.set()")
    assert error_of(open, mounted.point / "1/w.npy") == errno.EIO
    mounted.ask("source.stuck.clear()")
    mounted.ask("source.go_on.set()")
    time.sleep(1.5)
    assert mounted.ask("source.leases") == {}
    with open(mounted.point / "1/w.npy", "rb"):
        assert mounted.ask("source.leases") == {"1": 1}


def test_a_reader_can_be_killed_while_the_source_is_silent(mount) -> None:
    mounted = mount("--timeout", 2)
    mounted.ask(BIG)
    with subprocess.Popen(
        [sys.executable, "-c", _READ, mounted.point / "1/w.npy"],
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
    ) as reader:
        reader.stdout.readline()
        mounted.ask("source.stuck.set()")
        reader.kill()
        assert reader.wait(10) == -signal.SIGKILL
    mounted.ask("source.stuck.clear()")
    mounted.ask("source.go_on.set()")


def test_places_that_cannot_be_mounted_at(mount, tmp_path: Path) -> None:
    from ringcoll import InvalidArgument
    from ringcoll.weights.fuse.mounting import prepare

    mounted = mount()
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    for path, why in [
        (mounted.point, "mounted already"),
        (tmp_path / "full", "not empty"),
        (tmp_path / "full/file", "Not a directory"),
        (tmp_path / "absent", "No such file"),
    ]:
        with pytest.raises(InvalidArgument, match=why):
            prepare(path)
    (tmp_path / "a b").mkdir()
    assert is_mounted(mounted.point)
    spaced = mount(at="a b")
    spaced.ask('source.put({"w": np.ones(3)})')
    spaced.kill()
    mount(at="a b").ask('source.put({"w": np.ones(3)})')
    assert np.load(tmp_path / "a b/1/w.npy").sum() == 3


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A directory that all users may enter. pytest closes its own to others in each session."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


def test_fusermount_mounts_for_other_users(open_folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    point, spool = open_folder / "mount", open_folder / "spool"
    for folder in (point, spool):
        folder.mkdir()
        os.chown(folder, 65534, 65534)
    server = Path(__file__).parent / "serve_memory.py"
    user = ["setpriv", "--reuid", "65534", "--clear-groups"]
    command = [*user, sys.executable, server, point, "--staging", spool]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/"
    ) as process:
        try:
            assert process.stdout.readline() == f"mounted at {point}\n"
            process.stdin.write('source.put({"w": np.ones(3)})\n')
            process.stdin.flush()
            assert process.stdout.readline() == "1\n"
            script = "cp latest/w.npy staging/v.npy && mv staging/v.npy next && ls"
            done = subprocess.run(
                [*user, "sh", "-c", f"cd {point} && {script}"],
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.stdout.split() == ["1", "2", "latest", "staging"], done.stderr
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(10)
            subprocess.run(["umount", "-l", point], capture_output=True, check=False)
    assert process.returncode == 0
    assert not is_mounted(point)


@pytest.mark.parametrize(
    ("words", "status", "why"),
    [
        (["--timeout", "0"], 2, "positive number"),
        (["--threads", "0"], 2, "1 to 256"),
        (["--help"], 0, "DIR/latest"),
        ([], 1, "ringcoll mount: "),
    ],
)
def test_arguments_of_the_command(tmp_path: Path, words: list[str], status: int, why: str) -> None:
    (tmp_path / "file").touch()
    server = Path(__file__).parent / "serve_memory.py"
    command = [sys.executable, server, tmp_path, *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False)
    assert done.returncode == status
    assert why in done.stdout + done.stderr


@pytest.mark.parametrize("missing", ["mfusepy", "libfuse"])
def test_a_missing_library_is_said(tmp_path: Path, missing: str) -> None:
    environment = dict(os.environ)
    if missing == "mfusepy":
        (tmp_path / "mfusepy.py").write_text("raise ImportError('not installed')")
        environment["PYTHONPATH"] = f"{tmp_path}:{environment.get('PYTHONPATH', '')}"
    else:
        environment["FUSE_LIBRARY_NAME"] = "absent"
    server = Path(__file__).parent / "serve_memory.py"
    command = [sys.executable, server, tmp_path]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, cwd="/", check=False
    )
    assert done.returncode == 1
    assert "pip install 'ringcoll[store]'" in done.stderr
    assert "libfuse3-3" in done.stderr
