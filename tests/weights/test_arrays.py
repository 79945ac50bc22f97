"""Tensors of all libraries and types go through a store unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy
import pytest
from stores import Cluster, FakeFactory, together

from ringcoll.errors import InvalidArgument
from ringcoll.weights import arrays

torch = pytest.importorskip("torch")

NUMPY_TYPES = [
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128", "S5", "datetime64[s]"),
]
ML_TYPES = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float8_e4m3fnuz"]
TORCH_TYPES = [
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float8_e4m3fnuz", "float4_e2m1fn_x2"),
]


@pytest.fixture
def store() -> Iterator[Any]:
    cluster = Cluster(FakeFactory(), ["a"])
    yield cluster.stores[0]
    cluster.close()


def _bytes(count: int, width: int) -> numpy.ndarray:
    return numpy.arange(count * width, dtype=numpy.uint8) % 2


@pytest.mark.parametrize("dtype", NUMPY_TYPES + ML_TYPES)
def test_types_of_numpy(store: Any, dtype: str) -> None:
    kind = numpy.dtype(getattr(ml_dtypes, dtype) if dtype in ML_TYPES else dtype)
    x = _bytes(6, kind.itemsize).view(kind).reshape(2, 3)
    store.put("x", x)
    store.commit()
    found = store.get("x")
    assert found.dtype == kind and found.shape == (2, 3) and found.tobytes() == x.tobytes()
    out = numpy.empty_like(x)
    store.get("x", out=out)
    assert out.tobytes() == x.tobytes()
    store.put("x", x[::-1])
    store.commit()
    store.get("x", since=1, out=out)
    assert out.tobytes() == x[::-1].tobytes()


@pytest.mark.parametrize("dtype", TORCH_TYPES)
def test_types_of_torch(store: Any, dtype: str) -> None:
    kind = getattr(torch, dtype)
    x = torch.from_numpy(_bytes(8, kind.itemsize).copy()).view(kind).reshape(2, 4)
    store.put_state_dict({"x": x, "t": x.t(), "s": x[0, 0]})
    store.commit()
    out = {
        name: torch.empty_like(each) for name, each in {"x": x, "t": x.t(), "s": x[0, 0]}.items()
    }
    store.get_state_dict(out)
    for name, expected in {"x": x, "t": x.t(), "s": x[0, 0]}.items():
        assert arrays.bytes_of(out[name]).tobytes() == arrays.bytes_of(expected).tobytes()
    column = torch.empty(2, dtype=kind)
    store.get("x", out=column.reshape(2, 1), offset=(0, 2), shape=(2, 1))
    assert arrays.bytes_of(column).tobytes() == arrays.bytes_of(x[:, 2]).tobytes()


def test_modules_parameters_and_optimizers_of_torch(store: Any) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "state": optimizer.state_dict()["state"]}
    for _ in range(3):
        store.put_state_dict(state)
        store.commit()
    other = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    store.get_state_dict(other.state_dict(), prefix="model.")
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name])
    with pytest.raises(InvalidArgument, match="NoneType"):
        store.put_state_dict(optimizer.state_dict())


def test_a_parameter_is_seen_to_change(store: Any) -> None:
    """The same memory is put again and again."""
    parameter = torch.nn.Parameter(torch.zeros(5))
    for i in range(4):
        with torch.no_grad():
            parameter.fill_(i)
        store.put("p", parameter)
        store.put("half", parameter[:2])
        store.commit()
        assert (store.get("p") == i).all() and len(store.get("half")) == 2
    store.put("half", parameter[3:])
    store.commit()
    assert len(store.get("half")) == 2


def test_conjugates_and_negatives_of_torch(store: Any) -> None:
    x = torch.tensor([1 + 2j, 3 - 4j])
    store.put_state_dict({"c": x.conj(), "n": x.conj().imag})
    store.commit()
    assert (store.get("c") == x.numpy().conj()).all()
    assert (store.get("n") == -x.imag.numpy()).all()
    out = torch.zeros(2, dtype=torch.complex64).conj()
    store.get("c", out=out)
    assert torch.equal(out.resolve_conj(), x.conj().resolve_conj())


def test_what_a_store_does_not_keep(store: Any) -> None:
    for bad, text in [
        (torch.zeros(2, 2).to_sparse(), "sparse"),
        (torch.zeros(2, device="meta"), "on meta"),
        (numpy.array([object()]), "objects"),
        (numpy.zeros(2, [("a", "f4")]), "fields"),
    ]:
        with pytest.raises(InvalidArgument, match=text):
            store.put("x", bad)


def test_other_objects_with_memory(store: Any) -> None:
    import array

    store.put("bytes", bytearray(b"abc"))
    store.put("array", array.array("d", [1, 2]))
    store.put("view", memoryview(numpy.arange(4)))
    store.put("number", 5)
    store.put("swapped", numpy.arange(3, dtype=">i4"))
    store.commit()
    assert bytes(store.get("bytes")) == b"abc"
    assert list(store.get("array")) == [1.0, 2.0]
    assert store.get("number") == 5
    assert list(store.get("swapped")) == [0, 1, 2] and store.get("swapped").dtype.isnative
    out = bytearray(3)
    assert store.get("bytes", out=out) is out and out == b"abc"
    with pytest.raises(InvalidArgument, match="cannot be written"):
        store.get("bytes", out=b"xyz"[:0] or numpy.frombuffer(b"xyz", numpy.uint8))


def test_tensors_of_tensorflow(store: Any) -> None:
    tf = pytest.importorskip("tensorflow")
    x = tf.reshape(tf.range(6, dtype=tf.float32), (2, 3))
    variable = tf.Variable(tf.cast(x, tf.bfloat16))
    store.put_state_dict({"x": x, "v": variable})
    store.commit()
    assert (store.get("x") == x.numpy()).all()
    assert store.get("v").dtype == ml_dtypes.bfloat16
    variable.assign(tf.zeros_like(variable))
    store.get("v", out=variable)
    assert (variable.numpy().astype("float32") == x.numpy()).all()


def test_dtensors_with_another_sharding() -> None:
    """Ranks as threads cannot make a mesh, so one rank of a fake process group stands for all."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=1, world_size=2, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (2,))
        x = torch.arange(20.0).reshape(5, 4)
        mine = DTensor.from_local(x[3:], mesh, [Shard(0)], shape=x.shape, stride=x.stride())
        cluster = Cluster(FakeFactory(), ["a", "a"])
        first, second = cluster.stores
        first.put("x", x[:3], x.shape, (0, 0))
        second.put("x", mine)
        cluster.commit()
        assert (first.get("x") == x.numpy()).all()
        columns = DTensor.from_local(
            torch.zeros(5, 2), mesh, [Shard(1)], shape=x.shape, stride=(4, 1)
        )
        second.get("x", out=columns)
        assert torch.equal(columns.to_local(), x[:, 2:])
        same = DTensor.from_local(torch.zeros(5, 4), mesh, [Replicate()])
        second.get_state_dict({"x": same})
        assert torch.equal(same.to_local(), x)
        with pytest.raises(InvalidArgument, match="Partial"):
            second.put("y", DTensor.from_local(x, mesh, [Partial()]))
        with pytest.raises(InvalidArgument, match="its own slice"):
            second.put("y", mine, x.shape, (0, 0))
        with pytest.raises(InvalidArgument, match="has shape"):
            second.get("x", out=DTensor.from_local(x, mesh, [Shard(0)]))
        cluster.close()
    finally:
        dist.destroy_process_group()


def test_flatten_names_leaves() -> None:
    tree = {"a": {"b": [1, (2, 3)]}, 4: 5}
    assert dict(arrays.flatten(tree, "p.")) == {
        "p.a.b.0": 1,
        "p.a.b.1.0": 2,
        "p.a.b.1.1": 3,
        "p.4": 5,
    }
    arrays.set_leaf(tree, "a.b.0", 7)
    arrays.set_leaf(tree, "4", 8)
    assert tree["a"]["b"][0] == 7 and tree[4] == 8
    with pytest.raises(InvalidArgument, match="a dictionary"):
        dict(arrays.flatten(5))


def test_threads_may_use_a_store_at_a_time(store: Any) -> None:
    store.put("x", numpy.arange(1000))
    store.commit()

    def read() -> None:
        for _ in range(50):
            assert store.get("x")[999] == 999

    together([read] * 6)
