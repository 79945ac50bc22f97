"""Memory, disks and files of a store that are full, and files that are damaged."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy
import pytest
from members import SIZE, Failed, Member, await_copies, publish, sums_of
from stores import wait_until

import ringcoll
from ringcoll.errors import InvalidArgument
from ringcoll.weights.export import DiskFull

SMALL = {"a": 1, "b": 2}
LARGE = {f"layer.{i}": i for i in range(24)}
X = numpy.arange(1000, dtype="float32")


@pytest.fixture
def store() -> Iterator[ringcoll.Store]:
    with ringcoll.serve("w", "key") as agent, ringcoll.Store("w", agent) as opened:
        yield opened


# Memory. It is no file of any file system, so what is full are limits of the process.


@pytest.mark.parametrize(("limit", "more"), [("AS", 12 << 20), ("FSIZE", 4 << 20)])
def test_a_writer_without_memory(
    start_member: Callable[..., Member], limit: str, more: int
) -> None:
    writer = start_member("found", "w", "a")
    other = start_member("join", writer.address, "b")
    assert publish(writer, SMALL) == 1
    writer.ask("put", tensors=LARGE, size=SIZE)
    writer.ask("limit", kind=limit, more=more)
    for _ in range(2):
        with pytest.raises(Failed, match=r"bytes of shared memory.*raise.*ulimit"):
            writer.ask("commit")
    for member in (writer, other):
        assert member.ask("sums")[:2] == [1, sums_of(SMALL)]
    writer.ask("limit", kind=limit)
    assert writer.ask("commit") == 2
    for member in (writer, other):
        assert member.ask("sums")[:2] == [2, sums_of(SMALL | LARGE)]


def test_a_replica_without_memory(start_member: Callable[..., Member]) -> None:
    writer = start_member("found", "w", "a")
    other = start_member("join", writer.address, "b")
    assert publish(writer, SMALL) == 1
    await_copies(writer, 2, holders=2)
    other.ask("limit", kind="FSIZE", more=4 << 20)
    assert publish(writer, LARGE) == 2
    assert writer.ask("info")["replicas"] == {"wanted": 1, "had": 0}
    for member in (writer, other):
        assert member.ask("sums")[:2] == [2, sums_of(SMALL | LARGE)]
    other.ask("limit", kind="FSIZE")
    await_copies(writer, 2, holders=2)
    writer.kill()
    assert other.ask("sums")[:2] == [2, sums_of(SMALL | LARGE)]


_FULL = """
mount -t tmpfs -o size=64k tmpfs /dev/shm
dd if=/dev/zero of=/dev/shm/filler 2> /dev/null
exec "$@"
"""


def test_a_full_dev_shm_does_not_matter(start_member: Callable[..., Member]) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small tmpfs")
    prefix = ["unshare", "--mount", "sh", "-c", _FULL, "sh"]
    writer = start_member("found", "w", "a", prefix=prefix)
    reader = start_member("visit", writer.address, "a")
    assert publish(writer, LARGE) == 1
    assert reader.ask("sums")[:2] == [1, sums_of(LARGE)]


# The directory of a store's files.


def test_a_version_becomes_files_when_there_is_room(
    small_disk: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, filler = small_disk / "files", small_disk / "filler"
    with ringcoll.serve("w", "key") as agent, ringcoll.Store("w", agent, path=folder) as store:
        store.put("x", numpy.full(1000, 1.0))
        store.commit()
        wait_until((folder / "1").exists)
        filler.write_bytes(bytes(5 << 20))
        store.put("y", numpy.zeros(1 << 20, "uint8"))
        store.commit()
        wait_until(lambda: "version 2 cannot be exported" in caplog.text)
        assert "free some" in caplog.text
        # The thread that exports does not ask without a pause.
        asked: list[float] = []
        original = store.versions

        def versions(timeout: float | None = None) -> list[ringcoll.weights.store.Version]:
            asked.append(time.monotonic())
            return original(timeout)

        monkeypatch.setattr(store, "versions", versions)
        time.sleep(1.5)
        assert 1 <= len(asked) <= 3
        assert (folder / "latest").readlink() == Path("1")
        filler.unlink()
        wait_until(lambda: (folder / "latest").readlink() == Path("2"))
        assert caplog.text.count("cannot be exported") == 1


def test_save_to_a_full_disk(store: ringcoll.Store, small_disk: Path) -> None:
    path, filler = small_disk / "model.safetensors", small_disk / "filler"
    store.put("x", X)
    store.commit()
    store.save(path)
    store.put("x", X + 1)
    store.put("y", numpy.zeros(1 << 20, "uint8"))
    store.commit()
    before = path.read_bytes()
    filler.write_bytes(bytes(7 << 20))
    with pytest.raises(
        DiskFull, match=r"model\.safetensors.*no room for 1 MiB.*free some"
    ) as error:
        store.save(path)
    assert isinstance(error.value.__cause__, OSError)
    assert error.value.__cause__.errno == errno.ENOSPC
    assert sorted(os.listdir(small_disk)) == ["filler", path.name]
    assert path.read_bytes() == before
    filler.unlink()
    store.save(path)
    assert store.restore(path) == 3
    assert (store.get("x") == X + 1).all()


# Damaged files.


def _truncate(content: bytes) -> bytes:
    return content[:-1]


def _lengthen(content: bytes) -> bytes:
    return content + b"\0"


def _break_header(content: bytes) -> bytes:
    return content[:9] + b"\xff" + content[10:]


@pytest.mark.parametrize("damage", [_truncate, _lengthen, _break_header])
def test_restore_of_a_damaged_file(
    store: ringcoll.Store, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "model.safetensors"
    store.put("x", X)
    store.commit()
    store.save(path)
    path.write_bytes(damage(path.read_bytes()))
    store.put("y", X)
    with pytest.raises(InvalidArgument, match=r"model\.safetensors"):
        store.restore(path)
    assert store.commit() == 2  # of what was put
    assert sorted(store.names()) == ["x", "y"]


def test_restore_of_a_file_that_becomes_shorter(
    store: ringcoll.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails while it is copied. The next commit has nothing of the file."""
    path = tmp_path / "model.safetensors"
    store.put("x", X)
    store.commit()
    store.save(path)
    store.put("y", X)
    assert store.commit() == 2
    original = ringcoll.Store.commit

    def commit(self: ringcoll.Store, *arguments: object, **options: object) -> object:
        os.truncate(path, path.stat().st_size - 8)
        return original(self, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(ringcoll.Store, "commit", commit)
        with pytest.raises(OSError, match="became shorter"):
            store.restore(path)
    store.put("z", X)
    assert store.commit() == 3
    assert sorted(store.names()) == ["x", "y", "z"]
    assert all((store.get(name) == X).all() for name in "xyz")
