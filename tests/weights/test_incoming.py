"""Files that a user has written, well or badly formed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from ringcoll import InvalidArgument
from ringcoll.weights.formats import Manifest, Tensor, safetensors_layout
from ringcoll.weights.incoming import Incoming


def read(folder: Path, *names: str, dtype: str | None = None) -> Incoming:
    incoming = Incoming()
    try:
        for name in names:
            incoming.add_file(name, (folder / name).open("rb"), dtype)
        incoming.check()
    except BaseException:
        incoming.close()
        raise
    return incoming


def data_of(incoming: Incoming, name: str) -> bytes:
    out = bytearray(incoming.tensors[name].bytes)
    incoming.tensors[name].read_into(memoryview(out))
    return bytes(out)


def safetensors_file(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype: str, shape: list[Any], *offsets: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": list(offsets)}


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 4), (2, 3, 4)])
def test_npy_files_of_numpy(tmp_path: Path, order: str, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape), dtype="f4").reshape(shape).copy(order=order)
    np.save(tmp_path / "x.npy", array)
    incoming = read(tmp_path, "x.npy")
    assert (incoming.tensors["x"].dtype, incoming.tensors["x"].shape) == ("float32", shape)
    assert data_of(incoming, "x") == array.tobytes()
    incoming.close()


def test_parts_of_a_tensor(tmp_path: Path) -> None:
    array = np.arange(100, dtype="u1")
    np.save(tmp_path / "x.npy", array)
    np.save(tmp_path / "y.npy", array.reshape(10, 10).T)
    incoming = read(tmp_path, "x.npy", "y.npy")
    for name, whole in [("x", array), ("y", array.reshape(10, 10).T)]:
        part = np.zeros(10, "u1")
        incoming.tensors[name].read_into(memoryview(part), 25)
        assert part.tobytes() == whole.tobytes()[25:35]
    incoming.close()


def test_the_true_type_of_a_npy_file_can_be_said(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(4, "u2"))
    assert read(tmp_path, "x.npy", dtype="bfloat16").tensors["x"].dtype == "bfloat16"
    with pytest.raises(InvalidArgument, match=r"x.npy: its elements have 2 bytes"):
        read(tmp_path, "x.npy", dtype="float32")
    np.save(tmp_path / "x.npy", np.zeros(4, "V2"))
    with pytest.raises(InvalidArgument, match="set its extended attribute"):
        read(tmp_path, "x.npy")
    assert read(tmp_path, "x.npy", dtype="bfloat16").tensors["x"].dtype == "bfloat16"


def test_safetensors_files_of_torch(tmp_path: Path) -> None:
    tensors = {
        "a/b": torch.randn(3, 4).bfloat16(),
        "c": torch.arange(5),
        "d": torch.randn(7).to(torch.float8_e4m3fn),
    }
    safetensors.torch.save_file(tensors, tmp_path / "m.safetensors", {"step": "3", "format": "pt"})
    incoming = read(tmp_path, "m.safetensors")
    assert incoming.metadata == {"step": "3"}
    assert {name: tensor.dtype for name, tensor in incoming.tensors.items()} == {
        "a/b": "bfloat16",
        "c": "int64",
        "d": "float8_e4m3fn",
    }
    for name, tensor in tensors.items():
        assert data_of(incoming, name) == tensor.view(torch.uint8).numpy().tobytes()
    incoming.close()


def test_a_file_of_this_library_comes_back_with_types_and_metadata(tmp_path: Path) -> None:
    tensors = (Tensor("z", "complex128", (2, 3)), Tensor("s", "<U5", (4,)))
    layout = safetensors_layout(Manifest(17, tensors, {"step": 3, "names": ["a"]}))
    file = layout.header + bytes(layout.size - len(layout.header))
    (tmp_path / "m.safetensors").write_bytes(file)
    incoming = read(tmp_path, "m.safetensors")
    assert incoming.metadata == {"step": 3, "names": ["a"]}
    found = {(tensor.name, tensor.dtype, tensor.shape) for tensor in incoming.tensors.values()}
    assert found == {("z", "complex128", (2, 3)), ("s", "<U5", (4,))}
    incoming.close()


def test_metadata_from_a_file(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(4))
    (tmp_path / "metadata.json").write_text('{"step": 5}')
    incoming = read(tmp_path, "x.npy", "metadata.json")
    assert incoming.metadata == {"step": 5}
    incoming.close()
    (tmp_path / "metadata.json").write_text("[5]")
    with pytest.raises(InvalidArgument, match=r"metadata.json: it is no JSON object"):
        read(tmp_path, "x.npy", "metadata.json")


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(4))
    safetensors.torch.save_file({"x": torch.zeros(4)}, tmp_path / "m.safetensors")
    with pytest.raises(InvalidArgument, match=r"m.safetensors: tensor 'x' is in x.npy too"):
        read(tmp_path, "x.npy", "m.safetensors")


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "readme.txt").touch()
    with pytest.raises(InvalidArgument, match=r"readme.txt: it is neither"):
        read(tmp_path, "readme.txt")
    with pytest.raises(InvalidArgument, match="no tensor"):
        read(tmp_path)


def test_a_file_that_shrinks_is_an_error(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(4))
    incoming = read(tmp_path, "x.npy")
    with open(tmp_path / "x.npy", "r+b") as file:
        file.truncate(130)
    with pytest.raises(OSError, match="became shorter"):
        data_of(incoming, "x")
    incoming.close()


def _npy(descr: str, shape: str, data: bytes, order: str = "False") -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}}}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + data


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x93NUMPY",
        b"PK\x03\x04" + bytes(200),
        b"\x93NUMPY\x09\x00" + bytes(200),
        b"\x93NUMPY\x01\x00\xff\xff" + bytes(20),
        _npy("'<f4'", "(3,)", bytes(11)),
        _npy("'<f4'", "(3,)", bytes(13)),
        _npy("'<f4'", "(-3,)", bytes(12)),
        _npy("'<f4'", "(1 << 70,)", bytes(12)),
        _npy("'<f4'", f"({10**30},)", bytes(12)),
        _npy("'<f4'", "[3]", bytes(12)),
        _npy("'|O'", "(3,)", bytes(24)),
        _npy("'nonsense'", "(3,)", bytes(12)),
        _npy("[('a', '<f4'), ('b', '<i4')]", "(3,)", bytes(24)),
        _npy("'<f4'", "(3,)", bytes(12), order="__import__('os').getpid()"),
        _npy("'<U0'", "(3,)", b""),
    ],
)
def test_malformed_npy_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(InvalidArgument, match=r"x\.npy: "):
        read(tmp_path, "x.npy")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        bytes(7),
        (1 << 63).to_bytes(8, "little") + b"{}",
        (100).to_bytes(8, "little") + b"{}",
        safetensors_file(b"{"),
        safetensors_file(b"\xff\xff"),
        safetensors_file(b"[" * 100_000 + b"]" * 100_000),
        safetensors_file([]),
        safetensors_file({"x": 3}),
        safetensors_file({"__metadata__": 3}),
        safetensors_file({"x": entry("F32", [2], 0, 8)}, bytes(7)),
        safetensors_file({"x": entry("F32", [2], 0, 8)}, bytes(9)),
        safetensors_file({"x": entry("F32", [2], 0, 4)}, bytes(4)),
        safetensors_file({"x": entry("F32", [2], 8, 0)}, bytes(8)),
        safetensors_file({"x": entry("F32", [-2], 0, -8)}, bytes(8)),
        safetensors_file({"x": entry("F32", [2.0], 0, 8)}, bytes(8)),
        safetensors_file({"x": entry("F32", [True], 0, 4)}, bytes(4)),
        safetensors_file({"x": entry("F32", [1 << 32, 1 << 32], 0, 0)}),
        safetensors_file({"x": entry("F99", [2], 0, 8)}, bytes(8)),
        safetensors_file({"x": {"dtype": "F32", "shape": [2]}}, bytes(8)),
        safetensors_file({"x": entry("U8", [4], 4, 8)}, bytes(8)),
        safetensors_file({"x": entry("U8", [8], 0, 8), "y": entry("U8", [4], 4, 8)}, bytes(8)),
        safetensors_file(b'{"x":%b,"x":%b}' % ((json.dumps(entry("U8", [0], 0, 0)).encode(),) * 2)),
        safetensors_file({"../x": entry("U8", [1], 0, 1)}, b"x"),
        safetensors_file({"\ud800": entry("U8", [1], 0, 1)}, b"x"),
        safetensors_file(
            {
                "__metadata__": {"dtypes": '{"x": "complex128"}'},
                "x": entry("U8", [8], 0, 8),
            },
            bytes(8),
        ),
    ],
)
def test_malformed_safetensors_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(InvalidArgument):
        read(tmp_path, "x.safetensors")
