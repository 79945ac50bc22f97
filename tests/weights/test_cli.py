"""``ringcoll store`` as a user types it, with processes of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy
import pytest

from ringcoll.weights.mounted import rectangles

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def environment(**more: str) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("RINGCOLL_")}
    return clean | {"RINGCOLL_KEY": "key"} | more


def command(*words: object) -> list[str]:
    return [sys.executable, "-P", "-m", "ringcoll", "store", *map(str, words)]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a store is, with one version, for tests that do not change it."""
    folder = tmp_path_factory.mktemp("store")
    write_tensors(folder)
    options = {"env": environment(), "cwd": folder, "text": True}
    with subprocess.Popen(command("serve", "w"), stdout=subprocess.PIPE, **options) as server:
        assert server.stdout
        found = server.stdout.readline().strip()
        subprocess.run(command("put", found, "a.npy"), check=True, capture_output=True, **options)
        yield found
        server.terminate()


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def once(*words: object, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(*words),
            env=environment(**more),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return once


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """``serve("w", ...)``: a server, and its address; ended by SIGTERM at the test's end."""
    running: list[subprocess.Popen[str]] = []

    def begin(*words: object, **more: str) -> str:
        running.append(
            subprocess.Popen(
                command("serve", *words),
                env=environment(**more),
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        assert running[-1].stdout
        return running[-1].stdout.readline().strip()

    yield begin
    for process in reversed(running):
        process.terminate()
        with process:
            assert process.wait(20) == 0


def write_tensors(folder: Path) -> None:
    numpy.save(folder / "a.npy", numpy.arange(10_000.0))
    numpy.save(folder / "b.npy", numpy.ones((3, 4), "float32"))


def test_files_go_in_and_out(serve: Callable[..., str], run: Run, tmp_path: Path) -> None:
    write_tensors(tmp_path)
    address = serve("w", "--path", tmp_path / "files")
    done = run("put", address, "a.npy", "b.npy", "--metadata", '{"step": 7}')
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    (version,) = json.loads(run("ls", address, "--json").stdout)
    assert version["metadata"] == {"step": 7}
    assert version["bytes"] == 80_048
    listed = json.loads(run("ls", address, "--version", "latest", "--json").stdout)
    assert listed == {"a": ["float64", [10_000]], "b": ["float32", [3, 4]]}
    assert "float32" in run("ls", address, "--version", 1).stdout
    assert "step" in run("ls", address).stdout

    assert run("get", address, "b", "--out", "out.npy").returncode == 0
    assert (tmp_path / "out.npy").read_bytes() == (tmp_path / "b.npy").read_bytes()
    assert run("get", address, "--out", "all.safetensors").returncode == 0
    assert run("put", address, "all.safetensors").stdout == "2\n"
    assert run("get", address, "a", "--out", "out.npy").returncode == 0
    assert (tmp_path / "out.npy").read_bytes() == (tmp_path / "a.npy").read_bytes()
    latest = await_latest(tmp_path / "files", 2)
    assert (latest / "b.npy").read_bytes() == (tmp_path / "b.npy").read_bytes()


def await_latest(folder: Path, version: int) -> Path:
    """The link ``latest`` of a directory of versions, once it points to this version."""
    latest = folder / "latest"
    end = time.monotonic() + 20
    while latest.resolve().name != str(version) and time.monotonic() < end:
        time.sleep(0.05)
    assert latest.resolve().name == str(version)
    return latest


def test_another_process_keeps_the_files_when_one_is_killed(
    serve: Callable[..., str], run: Run, tmp_path: Path
) -> None:
    write_tensors(tmp_path)
    address = serve("w")
    words = command("watch", address, "--path", tmp_path / "files")
    options = {"env": environment(), "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, **options) as first, subprocess.Popen(words, **options) as second:
        assert run("put", address, "a.npy").stdout == "1\n"
        await_latest(tmp_path / "files", 1)
        first.kill()
        first.wait()
        assert run("put", address, "b.npy").stdout == "2\n"
        latest = await_latest(tmp_path / "files", 2)
        assert (latest / "b.npy").read_bytes() == (tmp_path / "b.npy").read_bytes()
        second.terminate()


def test_a_server_joins_and_gets_replicas(
    serve: Callable[..., str], run: Run, tmp_path: Path
) -> None:
    write_tensors(tmp_path)
    first = serve("w", "--replicas", 1)
    second = serve(first, RINGCOLL_HOSTID="second")
    assert second != first
    assert run("put", first, "a.npy").stdout == "1\n"
    (version,) = json.loads(run("ls", second, "--json").stdout)
    assert len(version["holders"]) == 2
    assert run("get", second, "a", "--out", "out.npy").returncode == 0


def test_watch_prints_versions(serve: Callable[..., str], run: Run, tmp_path: Path) -> None:
    write_tensors(tmp_path)
    address = serve("w")
    run("put", address, "a.npy")
    watcher = subprocess.Popen(
        command("watch", address, "--count", 2),
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    with watcher:
        assert watcher.stdout
        assert watcher.stdout.readline() == "1\n"
        for version in ("2\n", "3\n"):
            run("put", address, "b.npy")
            assert watcher.stdout.readline() == version
        assert watcher.wait(20) == 0


@pytest.mark.parametrize(
    ("words", "key", "says"),
    [
        (["ls", "ADDRESS"], "wrong", "key is wrong"),
        (["ls", "ADDRESS"], "", "RINGCOLL_KEY"),
        (["ls", "nonsense"], "key", "ringcoll://host:port/name"),
        (["ls", "ringcoll://127.0.0.1:1/w", "--open-timeout", "0.2"], "key", "refused"),
        (["get", "ADDRESS", "--out", "x", "--version", "9"], "key", "9"),
        (["get", "ADDRESS", "nothing", "--out", "x"], "key", "nothing"),
        (["put", "ADDRESS", "absent.npy"], "key", "absent.npy"),
        (["put", "ADDRESS", "bad.npy"], "key", "bad.npy"),
        (["serve", "a name with blanks"], "key", "name"),
        (["ls", "ADDRESS", "--key-file", "absent"], "key", "absent"),
    ],
)
def test_bad_input(
    address: str, run: Run, tmp_path: Path, words: list[str], key: str, says: str
) -> None:
    (tmp_path / "bad.npy").write_bytes(b"\x93NUMPY nonsense")
    done = run(*[address if word == "ADDRESS" else word for word in words], RINGCOLL_KEY=key)
    assert done.returncode == 1, done.stdout
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("shape", [(), (7,), (3, 4), (2, 3, 5), (4, 1, 3), (3, 0, 2)])
def test_any_stretch_of_a_tensor_is_slices_in_order(shape: tuple[int, ...]) -> None:
    whole = numpy.arange(numpy.prod(shape, dtype=int)).reshape(shape)
    for first in range(whole.size + 1):
        for end in range(first, whole.size + 1):
            found: list[int] = []
            for part in rectangles(shape, first, end):
                ranges = zip(part.offset, part.shape, strict=True)
                where = tuple(slice(begin, begin + length) for begin, length in ranges)
                found += whole[where].reshape(-1).tolist()
            if shape:
                assert found == list(range(first, end))
