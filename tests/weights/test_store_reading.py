"""Reading from a store: versions, leases, watching, deltas, files, on simulated and real agents."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
from stores import Cluster, wait_until

from ringcoll.errors import Gone, InvalidArgument
from ringcoll.weights import formats
from ringcoll.weights.export import Exporter

Make = Callable[..., Cluster]

X = numpy.arange(24, dtype="float32").reshape(4, 6)


# Reading.


def test_out_is_written(make: Make) -> None:
    (store,) = make(1).stores
    store.put("w", X)
    store.commit()
    for out in (
        numpy.zeros_like(X),
        numpy.zeros((6, 4), "float32").T,
        numpy.zeros((4, 12), "float32")[:, ::2],
    ):
        assert store.get("w", out=out) is out
        assert (out == X).all()
    columns = numpy.zeros((4, 2), "float32")
    store.get("w", out=columns, offset=(0, 1), shape=(4, 2))
    assert (columns == X[:, 1:3]).all()


def test_what_is_known_of_a_leased_version_stays_as_it_was(make: Make) -> None:
    """Also on the leader, whose catalog changes."""
    cluster = make(1, replicas=1)
    (store,) = cluster.stores
    store.put("w", X)
    store.commit()
    with contextlib.closing(store.lease()) as lease:
        cluster.guest(hold=True)
        wait_until(lambda: store.info()["replicas"] == {"wanted": 1, "had": 1})
        (piece,) = lease.manifest.tensor("w").pieces
        assert len(lease.manifest.sources(piece)) == 1
        assert len(lease.manifest.holders) == 1


def test_out_that_does_not_fit_is_refused(make: Make) -> None:
    (store,) = make(1).stores
    store.put("w", X)
    store.commit()
    with pytest.raises(InvalidArgument, match=r"float64 \[4, 6\], and the tensor is float32"):
        store.get("w", out=numpy.zeros((4, 6)))
    with pytest.raises(InvalidArgument, match=r"float32 \[4, 5\]"):
        store.get("w", out=numpy.zeros((4, 5), "float32"))
    frozen = numpy.zeros_like(X)
    frozen.flags.writeable = False
    with pytest.raises(InvalidArgument, match="cannot be written"):
        store.get("w", out=frozen)
    with pytest.raises(InvalidArgument, match="not within"):
        store.get("w", offset=(2, 0), shape=(3, 6))


def test_versions_and_names_that_are_not_there(make: Make) -> None:
    (store,) = make(1, keep=2).stores
    with pytest.raises(Gone, match="no version"):
        store.get("w")
    for _ in range(4):
        store.put("weight", X)
        store.commit()
    with pytest.raises(Gone, match=r"version 1 is not kept any more \(kept: 3, 4\)"):
        store.get("weight", 1)
    with pytest.raises(InvalidArgument, match="no version 9: the newest is 4"):
        store.get("weight", 9)
    with pytest.raises(InvalidArgument, match="no tensor 'weigth'; near it: weight"):
        store.get("weigth")
    with pytest.raises(InvalidArgument, match="neither a number"):
        store.get("weight", "newest")


def test_state_dict_is_filled_in_place(make: Make) -> None:
    (store,) = make(1).stores
    store.put_state_dict({"model": {"w": X, "layers": [X[0], X[1]]}, "step": 5, "rate": 0.5})
    store.commit()
    out = {
        "model": {"w": numpy.zeros_like(X), "layers": [numpy.zeros_like(X[0]) for _ in "ab"]},
        "step": 0,
        "rate": 0.0,
    }
    assert store.get_state_dict(out) is out
    assert (out["model"]["w"] == X).all() and (out["model"]["layers"][1] == X[1]).all()
    assert out["step"] == 5 and type(out["step"]) is int and out["rate"] == 0.5
    part = store.get_state_dict(prefix="model.layers.")
    assert set(part) == {"model.layers.0", "model.layers.1"}
    inner = {"w": numpy.zeros_like(X)}
    store.get_state_dict(inner, prefix="model.")
    assert (inner["w"] == X).all()


def test_latest_is_what_was_committed_last_for_everyone(make: Make) -> None:
    cluster = make(2)
    guest = cluster.guest()
    for i in range(20):
        cluster.put_all({"n": numpy.array(i)})
        cluster.commit()
        assert [int(store.get("n")) for store in [*cluster.stores, guest]] == [i, i, i]


# Retention, leases, watching.


def test_leased_versions_are_kept(make: Make) -> None:
    cluster = make(1, keep=1)
    (store,) = cluster.stores
    guest = cluster.guest()
    store.put("w", X)
    store.commit()
    with guest.lease() as version:
        for i in range(3):
            store.put("w", X + i)
            store.commit()
        assert version == 1
        assert (store.get("w", 1) == X).all()
        assert [v.number for v in store.versions()] == [1, 4]
    wait_until(lambda: [v.number for v in store.versions()] == [4])
    wait_until(lambda: store.info()["this"]["used"] == 128)


def test_a_lease_ends_with_its_client(make: Make) -> None:
    cluster = make(1, keep=1)
    (store,) = cluster.stores
    guest = cluster.guest()
    store.put("w", X)
    store.commit()
    lease = guest.lease()
    store.put("w", X)
    store.commit()
    guest.close()
    wait_until(lambda: [v.number for v in store.versions()] == [2])
    lease.close()
    lease.close()


def test_memory_does_not_grow_with_versions(make: Make) -> None:
    cluster = make(2, keep=2)
    for _ in range(30):
        cluster.put_all({f"w{i}": X for i in range(10)})
        cluster.commit()
    for store in cluster.stores:
        assert store.info()["this"]["memory"] <= 5 * 10 * 128 * 2


def test_watch_yields_the_newest(make: Make) -> None:
    cluster = make(1)
    (store,) = cluster.stores
    guest = cluster.guest()
    store.commit()
    seen: list[int] = []
    watch = guest.watch(timeout=5, after=0)
    assert next(watch) == 1
    for _ in range(3):
        store.commit()
    wait_until(lambda: guest._session.newest == 4)
    assert next(watch) == 4

    second = guest.watch(timeout=1.0)
    thread = threading.Thread(target=lambda: seen.extend(second))
    thread.start()
    assert guest._session._watching == 2
    store.commit()
    thread.join(10)
    assert seen == [5]
    watch.close()
    assert guest._session._watching == 0


def test_watch_ends_when_the_store_is_closed(make: Make) -> None:
    cluster = make(1)
    guest = cluster.guest()
    watch = guest.watch()
    threading.Timer(0.2, guest.close).start()
    assert list(watch) == []


# Deltas.


def test_update_brings_one_version_to_another(make: Make) -> None:
    cluster = make(1)
    (store,) = cluster.stores
    big = numpy.random.default_rng(1).standard_normal(200_000).astype("float32")
    store.put_state_dict({"big": big, "same": X, "n": 1})
    store.commit()
    guest = cluster.guest()
    out = {"big": numpy.zeros_like(big), "same": numpy.zeros_like(X), "n": 0}
    guest.get_state_dict(out)
    changed = big.copy()
    changed[::100] += 1
    store.put_state_dict({"big": changed, "n": 2})
    store.commit()
    for distance in guest._reader.rates._rates:
        guest._reader.rates._rates[distance] = 1e8  # as if the link were slow
    update = guest.prepare(since=1, out=out)
    assert update.version == 2
    assert (out["big"] == big).all() and out["n"] == 1
    assert update.deltas == 1
    assert update.bytes < big.nbytes / 10
    assert update.apply() is out
    assert (out["big"] == changed).all() and (out["same"] == X).all() and out["n"] == 2
    with pytest.raises(InvalidArgument, match="already"):
        update.apply()


def test_update_of_a_tensor_with_other_values_reads_it_whole(make: Make) -> None:
    cluster = make(1)
    (store,) = cluster.stores
    big = numpy.zeros(100_000, "float32")
    store.put("big", big)
    store.commit()
    big = big.copy()
    big[5] = 1
    store.put("big", big)
    store.commit()
    guest = cluster.guest()
    for distance in guest._reader.rates._rates:
        guest._reader.rates._rates[distance] = 1e8
    wrong = numpy.full(100_000, 7, "float32")
    update = guest.prepare(since=1, out={"big": wrong})
    assert update.deltas == 1
    update.apply()
    assert (wrong == big).all()


def test_updates_of_all_kinds(make: Make) -> None:
    """Shapes that change, names that are new, an earlier version that is gone."""
    cluster = make(1, keep=2)
    (store,) = cluster.stores
    store.put_state_dict({"a": X, "b": X})
    store.commit()
    store.put_state_dict({"a": X[:2], "c": X + 1})
    store.commit()
    out = {"a": numpy.zeros_like(X[:2]), "b": X.copy(), "c": numpy.zeros_like(X)}
    with store.prepare(since=1, out=out) as update:
        update.apply()
    assert (out["a"] == X[:2]).all() and (out["c"] == X + 1).all()
    assert store.get("c", since=1, out=out["c"]) is out["c"]
    store.get_state_dict(out, since=99)
    with pytest.raises(InvalidArgument, match="needs out="):
        store.get("c", since=1)
    with pytest.raises(InvalidArgument, match="out="):
        store.prepare(since=1)
    wait_until(lambda: store.info()["leases"] == 0)


def test_an_update_keeps_its_versions(make: Make) -> None:
    (store,) = make(1, keep=1).stores
    store.put("a", X)
    store.commit()
    out = {"a": numpy.zeros_like(X)}
    update = store.prepare(out=out)
    store.put("a", X + 1)
    store.commit()
    assert [v.number for v in store.versions()] == [1, 2]
    update.apply()
    assert (out["a"] == X).all()
    wait_until(lambda: [v.number for v in store.versions()] == [2])
    update = store.prepare(out=out)
    update.close()
    update.close()
    wait_until(lambda: store.info()["leases"] == 0)


# Files.


def test_save_and_restore_on_other_holders(make: Make, tmp_path: Path) -> None:
    cluster = make(2)
    cluster.put_all({"w": X, "deep": {"s": numpy.array(3, "int64")}, "e": numpy.zeros((0, 2))})
    cluster.commit(metadata={"step": 3})
    path = cluster.guest().save(tmp_path / "model.safetensors")
    other = make(1)
    (store,) = other.stores
    store.put("old", X)
    store.commit()
    assert store.restore(path) == 2
    found = store.get_state_dict()
    assert set(found) == {"w", "deep.s", "e"}
    assert (found["w"] == X).all() and found["deep.s"] == 3 and found["e"].shape == (0, 2)
    assert store.versions()[-1].metadata == {"step": 3}
    assert [each.name for each in tmp_path.iterdir()] == ["model.safetensors"]


def test_saving_fails_whole(make: Make, tmp_path: Path) -> None:
    (store,) = make(1).stores
    store.put("w", X)
    store.commit()
    with pytest.raises(OSError):
        store.save(tmp_path / "missing" / "m.safetensors")
    (tmp_path / "m.safetensors").write_bytes(b"no model")
    with pytest.raises(InvalidArgument, match=r"m.safetensors"):
        store.restore(tmp_path / "m.safetensors")
    with pytest.raises(FileNotFoundError):
        store.restore(tmp_path / "n.safetensors")
    assert store.commit() == 2
    assert set(store.names()) == {"w"}


def test_versions_as_files(make: Make, tmp_path: Path) -> None:
    cluster = make(1, keep=2)
    guest = cluster.guest(path=tmp_path / "files")
    for i in range(4):
        cluster.put_all({"w": X + i})
        cluster.commit()
    latest = tmp_path / "files" / "latest"
    wait_until(lambda: latest.is_symlink() and os.readlink(latest) == "4")
    assert (numpy.load(latest / "w.npy", mmap_mode="r") == X + 3).all()
    wait_until(lambda: {"1", "2"}.isdisjoint(os.listdir(tmp_path / "files")))
    guest.close()


def test_files_of_an_earlier_run_are_replaced(make: Make, tmp_path: Path) -> None:
    cluster = make(1)
    cluster.put_all({"w": X})
    cluster.commit()
    with Exporter(tmp_path) as earlier:
        tensor = formats.Tensor("w", "float32", (1,))
        earlier.export(formats.Manifest(1, (tensor,)), lambda name, view: None)
    guest = cluster.guest(path=tmp_path)
    wait_until(lambda: numpy.load(tmp_path / "latest" / "w.npy").shape == X.shape)
    guest.close()
