"""Kinds of tensors whose memory is not what they look like: computed with as they look, or refused
with what to pass instead. Each is tried as input, and where it says so as output."""

from __future__ import annotations

import array
import ctypes
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import ringcoll
from ringcoll import _core


@pytest.fixture(scope="module")
def alone() -> Iterator[ringcoll.Communicator]:
    """A communicator of this process alone: what is refused is refused before anything is sent."""
    with ringcoll.Communicator(_core.Comm(0, 1, "local://kinds"), "kinds") as world:
        yield world


class Tagged(torch.Tensor):
    """A class without a dispatch of its own: its memory holds its values."""


class Wrapped:
    """Offers its array by DLPack alone."""

    def __init__(self, array: Any, old: bool = False) -> None:
        self.array, self.old, self.shape = array, old, array.shape

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__() if self.old else self.array.__dlpack__(**options)


def fake() -> torch.Tensor:
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode().from_tensor(torch.ones(3))


def masked_torch() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.masked.masked_tensor(torch.ones(3), torch.tensor([True, False, True]))


def freed() -> torch.Tensor:
    x = torch.ones(3)
    x.untyped_storage().resize_(0)
    return x


def nested(layout: torch.layout) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)


def quantised() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8)


def read_only(x: np.ndarray) -> np.ndarray:
    x.flags.writeable = False
    return x


def big_endian() -> Any:
    return (ctypes.c_double.__ctype_be__ * 3)(1, 2, 3)


COMPUTED: dict[str, tuple[Callable[[], Any], list[float]]] = {
    "torch: sign applied": (lambda: torch.tensor([1 + 2j]).conj().imag.resolve_neg(), [-2]),
    "torch: part of a complex one": (lambda: torch.tensor([1 + 2j]).real, [1]),
    "torch: a copy not yet made": (lambda: torch.ones(3)._lazy_clone(), [1, 1, 1]),
    "torch: a subclass": (lambda: torch.ones(3).as_subclass(Tagged), [1, 1, 1]),
    "torch: a parameter": (lambda: torch.nn.Parameter(torch.ones(3), requires_grad=False), [1] * 3),
    "torch: in the middle of its storage": (lambda: torch.arange(6.0)[2:4], [2, 3]),
    "torch: scalar": (lambda: torch.tensor(5.0), [5]),
    "torch: empty": (lambda: torch.ones(0, 3), []),
    "numpy: filled": (lambda: np.ma.array([1.0, 2.0], mask=[0, 1]).filled(7), [1, 7]),
    "numpy: a matrix": (lambda: np.asmatrix([[1.0, 2.0]]), [1, 2]),
    "numpy: a field of its own": (lambda: np.zeros(3, [("x", "f8")])["x"], [0, 0, 0]),
    "numpy: axes of one": (lambda: np.arange(3.0)[None, :, None][:, ::1], [0, 1, 2]),
    "numpy: Fortran vector": (lambda: np.asfortranarray([1.0, 2.0]), [1, 2]),
    "numpy: read-only": (lambda: read_only(np.ones(2)), [1, 1]),
    "numpy: scalar": (lambda: np.float64(3), [3]),
    "DLPack 1.0: read-only": (lambda: Wrapped(read_only(np.ones(2))), [1, 1]),
    "DLPack before 1.0": (lambda: Wrapped(np.ones(2), old=True), [1, 1]),
    "array.array": (lambda: array.array("d", [1, 2]), [1, 2]),
    "ctypes": (lambda: (ctypes.c_double * 2)(1, 2), [1, 2]),
}

# What the message says, and whether another output than the input is tried too.
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "torch: negative bit": (lambda: torch.tensor([1 + 2j]).conj().imag, "resolve_neg"),
    "torch: negative scalar": (lambda: torch.tensor(1 + 2j).conj().imag, "resolve_neg"),
    "torch: negative subclass": (
        lambda: torch.tensor([1 + 2j]).conj().imag.as_subclass(Tagged),
        "resolve_neg",
    ),
    "torch: conjugate bit": (lambda: torch.tensor([1 + 2j]).conj(), "no collective works on"),
    "torch: complex": (lambda: torch.tensor([1 + 2j]), "no collective works on"),
    "torch: float8": (lambda: torch.ones(3).to(torch.float8_e4m3fn), "no collective works on"),
    "torch: coordinates": (lambda: torch.ones(3).to_sparse(), "cannot be borrowed"),
    "torch: compressed rows": (lambda: torch.eye(3).to_sparse_csr(), "cannot be borrowed"),
    "torch: oneDNN": (lambda: torch.ones(3, 3).to_mkldnn(), "cannot be borrowed"),
    "torch: quantised": (quantised, "cannot be borrowed"),
    "torch: meta": (lambda: torch.empty(3, device="meta"), "cannot be borrowed: .*meta"),
    "torch: nested": (lambda: nested(torch.strided), "cannot be borrowed"),
    "torch: jagged": (lambda: nested(torch.jagged), "torch.Tensor"),
    "torch: masked": (masked_torch, "torch.Tensor"),
    "torch: fake": (fake, "torch.Tensor"),
    "torch: zeros without memory": (lambda: torch._efficientzerotensor(3), "no memory.*clone"),
    "torch: memory given back": (freed, "no memory"),
    "torch: needs a gradient": (lambda: torch.ones(3, requires_grad=True), r"detach\(\)"),
    "torch: result with a gradient": (
        lambda: torch.ones(3, requires_grad=True) * 2,
        r"detach\(\)",
    ),
    "torch: expanded": (lambda: torch.ones(1).expand(3), "contiguous"),
    "torch: overlapping": (lambda: torch.ones(4).as_strided((2, 3), (1, 1)), "contiguous"),
    "torch: transposed": (lambda: torch.ones(2, 3).t(), "contiguous"),
    "numpy: masked": (lambda: np.ma.array([1.0, 2.0], mask=[0, 1]), r"x\.filled"),
    "numpy: masked nowhere": (lambda: np.ma.array([1.0, 2.0]), r"x\.filled"),
    "numpy: records": (lambda: np.zeros(3, [("x", "f4"), ("y", "i4")]), "no collective works"),
    "numpy: records of one": (lambda: np.zeros(3, [("x", "f8")]), "no collective works"),
    "numpy: objects": (lambda: np.array([1, None], object), "no collective works"),
    "numpy: big-endian": (lambda: np.ones(3, ">f8"), "byte order"),
    "numpy: complex": (lambda: np.ones(3, complex), "no collective works"),
    "numpy: long double": (lambda: np.ones(3, np.longdouble), "no collective works"),
    "numpy: dates": (lambda: np.zeros(3, "M8[s]"), "no collective works"),
    "numpy: text": (lambda: np.array(["a"]), "no collective works"),
    "numpy: bytes": (lambda: np.array([b"ab"]), "no collective works"),
    "numpy: void": (lambda: np.zeros(3, "V4"), "no collective works"),
    "numpy: broadcast": (lambda: np.broadcast_to(1.0, 3), "contiguous"),
    "numpy: overlapping": (
        lambda: np.lib.stride_tricks.as_strided(np.ones(4), (2, 3), (8, 8)),
        "contiguous",
    ),
    "numpy: reversed": (lambda: np.arange(3.0)[::-1], "contiguous"),
    "numpy: every other": (lambda: np.arange(6.0)[::2], "contiguous"),
    "numpy: field among others": (
        lambda: np.zeros(3, [("x", "f8"), ("y", "f8")])["x"],
        "contiguous",
    ),
    "ctypes: big-endian": (big_endian, "byte order"),
}

READ_ONLY: dict[str, tuple[Callable[[], Any], str]] = {
    "numpy: read-only": (lambda: read_only(np.ones(3)), "read-only"),
    "numpy: broadcast of one": (lambda: np.broadcast_to(np.ones(3), (1, 3)), "read-only"),
    "bytes": (lambda: bytes(3), "read-only"),
    "memoryview": (lambda: memoryview(np.ones(3)).toreadonly(), "read-only"),
    "numpy scalar": (lambda: np.float64(3), "read-only"),
    "DLPack 1.0": (lambda: Wrapped(read_only(np.ones(3))), "read-only"),
    "DLPack before 1.0": (lambda: Wrapped(np.ones(3), old=True), "may be read-only"),
}


def values_of(x: Any) -> list[float]:
    return np.asarray(x).ravel().tolist()


@pytest.mark.parametrize("kind", COMPUTED)
def test_is_computed_with_as_it_looks(alone, kind):
    make, wanted = COMPUTED[kind]
    x = make()
    out = np.full(len(wanted), -1, np.float32 if isinstance(x, torch.Tensor) else np.float64)
    alone.allreduce(x, out=out)
    assert values_of(out) == wanted
    if not isinstance(x, Wrapped) and wanted:
        assert values_of(alone.allreduce(x)) == wanted


@pytest.mark.parametrize("kind", REFUSED)
def test_is_refused_with_the_remedy(alone, kind):
    make, message = REFUSED[kind]
    x = make()
    before = np.zeros(3)
    for use in (
        lambda: alone.allreduce(x, out=before),
        lambda: alone.broadcast(before, out=x),
        lambda: alone.allreduce(x, out=x),
        lambda: alone.allreduce_async(x, out=before),
        lambda: alone.send(x, 0),
        lambda: alone.irecv(x, 0),
    ):
        with pytest.raises(ringcoll.InvalidArgument, match=f"(?s){message}"):
            use()


@pytest.mark.parametrize("kind", READ_ONLY)
def test_is_no_output(alone, kind):
    make, message = READ_ONLY[kind]
    x = make()
    for use in (lambda: alone.allreduce(x, out=x), lambda: alone.recv(x, 0)):
        with pytest.raises(ringcoll.InvalidArgument, match=message):
            use()


def test_dlpack_that_may_be_written_is_an_output(alone):
    x = np.zeros(3)
    alone.allreduce(np.ones(3), out=Wrapped(x))
    assert values_of(x) == [1, 1, 1]


@pytest.mark.parametrize("transform", ["vmap", "grad", "jvp", "functionalize"])
def test_inside_a_transformation_of_torch_is_refused(alone, transform):
    out = torch.zeros(3)

    def body(x: torch.Tensor) -> torch.Tensor:
        alone.allreduce(x, out=out)
        return x.sum()

    run = {
        "vmap": lambda: torch.vmap(body)(torch.ones(2, 3)),
        "grad": lambda: torch.func.grad(body)(torch.ones(3)),
        "jvp": lambda: torch.func.jvp(body, (torch.ones(3),), (torch.ones(3),)),
        "functionalize": lambda: torch.func.functionalize(body)(torch.ones(3)),
    }[transform]
    with pytest.raises(ringcoll.InvalidArgument, match=r"cannot be borrowed|no memory"):
        run()
    assert out.tolist() == [0, 0, 0]


def test_a_distributed_tensor_is_refused_and_its_part_is_not(run_ranks):
    def body(world):
        import torch.distributed as dist
        from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

        store = dist.FileStore("meeting", 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        mesh = init_device_mesh("cpu", (1,))
        x = distribute_tensor(torch.ones(4), mesh, [Shard(0)])
        with pytest.raises(ringcoll.InvalidArgument, match=r"to_local\(\) of a DTensor"):
            world.allreduce(x)
        total = world.allreduce(x.to_local()).tolist()
        dist.destroy_process_group()
        return total

    assert run_ranks(1, body, env={"GLOO_SOCKET_IFNAME": "lo"}) == [[1, 1, 1, 1]]


def test_tensors_of_tensorflow_are_inputs(run_ranks):
    def body(world):
        import tensorflow as tf

        for dtype in (tf.float32, tf.bfloat16):
            x = tf.ones(3, dtype)
            out = torch.zeros(3, dtype=torch.float32 if dtype == tf.float32 else torch.bfloat16)
            assert world.allreduce(x, out=out).tolist() == [1, 1, 1]
            with pytest.raises(ringcoll.InvalidArgument, match="read-only"):
                world.allreduce(x, out=x)
            assert (tf.cast(x, tf.float32).numpy() == 1).all()
        for none in (tf.sparse.from_dense(tf.ones(3)), tf.ragged.constant([[1], [2, 3]])):
            with pytest.raises(ringcoll.InvalidArgument, match="is no tensor"):
                world.allreduce(none, out=np.ones(3))

    run_ranks(1, body, limit=240)  # an import of tensorflow, under sanitizers too
