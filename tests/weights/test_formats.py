"""Headers of .npy and safetensors files, and names of tensors as paths."""

from __future__ import annotations

import io
import json

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

from ringcoll import InvalidArgument
from ringcoll.weights import dtypes
from ringcoll.weights.formats import (
    Layout,
    Manifest,
    Tensor,
    npy_layout,
    safetensors_layout,
)
from ringcoll.weights.names import path_of, paths_of, possible_paths

NUMPY = "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64 complex64"
OTHERS = "complex128 longdouble clongdouble datetime64[ns] timedelta64[s] <U5 |S7 |V3 >f4 >i8"
SHAPES = [(), (0,), (7,), (2, 3), (2, 0, 5), (1,) * 32]


def file_of(layout: Layout, data: dict[str, bytes], chunk: int = 7) -> bytes:
    """The file, read in chunks as a file system does."""
    out = bytearray(layout.size)
    for offset in range(0, layout.size, chunk):
        view = memoryview(out)[offset : offset + chunk]
        for piece in layout.plan(offset, view):
            piece.out[:] = data[piece.name][piece.offset : piece.offset + len(piece.out)]
    return bytes(out)


@pytest.mark.parametrize("name", [*NUMPY.split(), *OTHERS.split()])
@pytest.mark.parametrize("shape", SHAPES)
def test_npy_is_what_numpy_saves(name: str, shape: tuple[int, ...]) -> None:
    array = np.zeros(shape, np.dtype(name))
    saved = io.BytesIO()
    np.save(saved, array)
    tensor = Tensor("x", dtypes.of_numpy(array.dtype).name, shape)
    assert file_of(npy_layout(tensor), {"x": array.tobytes()}) == saved.getvalue()


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_what_numpy_lacks_comes_back_through_a_view(name: str) -> None:
    values = np.linspace(-2, 2, 24).reshape(4, 6).astype(getattr(ml_dtypes, name))
    tensor = Tensor("x", dtypes.of_numpy(values.dtype).name, values.shape)
    assert tensor.dtype == name
    file = file_of(npy_layout(tensor), {"x": values.tobytes()})
    loaded = np.load(io.BytesIO(file))
    np.testing.assert_array_equal(loaded.view(values.dtype), values)
    as_torch = torch.from_numpy(loaded).view(getattr(torch, name))
    np.testing.assert_array_equal(as_torch.float().numpy(), values.astype("f4"))


def test_safetensors_is_read_by_its_library() -> None:
    arrays = {
        f"t{index}": np.arange(13 * (index + 1)).astype(name)
        for index, name in enumerate(NUMPY.split())
    }
    arrays |= {"scalar": np.float32(3), "empty": np.zeros((0, 4)), "a/b": np.ones(64, "f8")}
    tensors = tuple(Tensor(name, array.dtype.name, array.shape) for name, array in arrays.items())
    layout = safetensors_layout(Manifest(17, tensors, {"step": 3}))
    file = file_of(layout, {name: array.tobytes() for name, array in arrays.items()})
    loaded = safetensors.numpy.load(file)
    assert loaded.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(loaded[name], array)
        assert loaded[name].dtype == array.dtype


@pytest.mark.parametrize(
    "name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"]
)
def test_safetensors_says_the_true_type(name: str) -> None:
    values = torch.linspace(-2, 2, 24).to(getattr(torch, name)).reshape(4, 6)
    data = values.view(torch.uint8).numpy().tobytes()
    layout = safetensors_layout(Manifest(1, (Tensor("x", name, (4, 6)),)))
    loaded = safetensors.torch.load(file_of(layout, {"x": data}))["x"]
    assert loaded.dtype == values.dtype
    assert torch.equal(loaded.view(torch.uint8), values.view(torch.uint8))


def test_metadata_say_version_and_types_without_a_name() -> None:
    manifest = Manifest(17, (Tensor("z", "complex128", (2, 3)),), {"step": 3, "lr": 0.5})
    header = safetensors_layout(manifest).header
    entries = json.loads(header[8:])
    assert entries["z"] == {"dtype": "U8", "shape": [2, 3, 16], "data_offsets": [0, 96]}
    about = entries["__metadata__"]
    assert about["version"] == "17"
    assert about["format"] == "pt"
    assert json.loads(about["metadata"]) == {"step": 3, "lr": 0.5}
    assert json.loads(about["dtypes"]) == {"z": "complex128"}


def test_tensors_are_aligned_for_those_who_map() -> None:
    random = np.random.default_rng(1)
    tensors = tuple(
        Tensor(f"t{index}", str(random.choice(NUMPY.split())), (int(random.integers(0, 99)),))
        for index in range(300)
    )
    layout = safetensors_layout(Manifest(1, tensors))
    assert len(layout.header) % 64 == 0
    sizes = {tensor.name: dtypes.find(tensor.dtype).size for tensor in tensors}
    assert all(slot.start % sizes[slot.name] == 0 for slot in layout.slots)
    assert all(slot.start % 64 == 0 for slot in layout.slots if slot.bytes % 64 == 0)


def test_any_part_of_a_file_can_be_read() -> None:
    data = {f"t{index}": bytes([index]) * size for index, size in enumerate([0, 1, 64, 5, 0, 300])}
    tensors = tuple(Tensor(name, "uint8", (len(part),)) for name, part in data.items())
    layout = safetensors_layout(Manifest(1, tensors))
    whole = file_of(layout, data, chunk=1 << 20)
    for chunk in (1, 3, 64, 100):
        assert file_of(layout, data, chunk) == whole


@pytest.mark.parametrize("name", ["object", "i4,f8", "no such", "", "<U0", "float"])
def test_other_types_are_refused_or_have_one_name(name: str) -> None:
    if name == "float":
        assert dtypes.find(name).name == "float64"
        return
    with pytest.raises(InvalidArgument):
        dtypes.find(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/etc/passwd",
        "..",
        "../x",
        "a/../../x",
        "a//b",
        "a/",
        "./a",
        "a\0b",
        "x" * 252,
        "x/" * 1600 + "x",
        "\ud800",
        "__metadata__",
    ],
)
def test_names_that_are_no_paths_are_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match="cannot be a file"):
        path_of(name)
    assert possible_paths([name, "good"])[0] == {"good": "good.npy"}


def test_other_names_are_paths() -> None:
    for name in ["a", "a.b", "a/b", "-rf", "a b\n", "ü", "...", "..a/b..", "x" * 251, "latest"]:
        assert path_of(name) == f"{name}.npy"


@pytest.mark.parametrize("names", [["a", "a.npy/b"], ["model.safetensors/x"]])
def test_a_file_cannot_be_a_directory(names: list[str]) -> None:
    with pytest.raises(InvalidArgument, match="is a file already"):
        paths_of(names)
    assert len(possible_paths(names)[1]) == 1
