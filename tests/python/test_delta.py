"""Deltas between two versions of a tensor, and checksums: ringcoll._core, which ringcoll.Store is
to use."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

import ringcoll
from ringcoll import _core

torch = pytest.importorskip("torch")

DTYPES = ["int8", "uint8", "bool", "int16", "uint16", "float16", "int32", "float32", "float64"]


def versions(dtype: str, count: int, density: float) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(count)
    before = random.integers(0, 2, count).astype(dtype)
    now = before.copy()
    changed = random.random(count) < density
    now[changed] = 1 - now[changed].astype("int8")
    return before, now


def room_for(tensor: np.ndarray) -> np.ndarray:
    return np.full(tensor.nbytes + tensor.nbytes // 16384 + 64, 0xEE, np.uint8)


def make(before: Any, now: Any, room: np.ndarray) -> np.ndarray:
    length = _core.delta_make(before, now, room)
    assert length is not None
    return room[:length].copy()


@pytest.mark.parametrize("density", [0, 0.01, 0.4, 1])
@pytest.mark.parametrize("count", [0, 1, 1000, 70_000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_delta_turns_one_version_into_the_other(dtype, count, density):
    before, now = versions(dtype, count, density)
    delta = make(before, now, room_for(now))
    _core.delta_apply(before, delta)
    assert before.tobytes() == now.tobytes()


def test_deltas_are_bit_for_bit():
    before = np.array([0.0, -0.0, np.nan, 1.0], np.float32)
    now = np.array([-0.0, -0.0, np.nan, 1.0], np.float32)
    delta = make(before, now, room_for(now))
    assert len(delta) == 24 + 4 + 2 + 4  # one element: NaN equals itself
    _core.delta_apply(before, delta)
    assert before.tobytes() == now.tobytes()


def test_one_percent_of_bfloat16_takes_two_percent_of_the_bytes():
    torch = pytest.importorskip("torch")
    before = torch.zeros(1_000_000, dtype=torch.bfloat16)
    now = before.clone()
    now[torch.randperm(len(now))[:10_000]] = 1.5
    room = torch.empty(100_000, dtype=torch.uint8)
    length = _core.delta_make(before, now, room)
    assert length is not None and length < 0.0205 * 2 * len(now)
    _core.delta_apply(before, room[:length])
    assert torch.equal(before, now)
    assert _core.checksum(before) == _core.checksum(now)


def test_anything_with_memory_is_taken():
    torch = pytest.importorskip("torch")
    before, now = versions("float32", 1000, 0.1)
    wanted = make(before, now, room_for(now)).tobytes()
    for old, new in (
        (memoryview(before), memoryview(now)),
        (torch.from_numpy(before.copy()), torch.from_numpy(now)),
        (before.reshape(10, 100), now.reshape(10, 100)),
    ):
        room = bytearray(10_000)
        length = _core.delta_make(old, new, memoryview(room))
        assert room[:length] == wanted
    tensor = torch.from_numpy(before.copy())
    _core.delta_apply(tensor, wanted)
    assert tensor.numpy().tobytes() == now.tobytes()
    sums = {_core.checksum(each) for each in (now, now.tobytes(), tensor, memoryview(now))}
    assert len(sums) == 1


def test_a_delta_that_does_not_fit_is_none():
    before, now = versions("float32", 1000, 0.1)
    length = len(make(before, now, room_for(now)))
    room = room_for(now)
    assert _core.delta_make(before, now, room[: length - 1]) is None
    assert (room[length - 1 :] == 0xEE).all()
    assert _core.delta_make(before, now, room[:length]) == length


def test_a_damaged_delta_leaves_the_tensor_unchanged():
    before, now = versions("float32", 1000, 0.1)
    unchanged = before.copy()
    delta = make(before, now, room_for(now))
    for at in range(len(delta)):
        damaged = delta.copy()
        damaged[at] ^= 0x10
        with pytest.raises(ringcoll.errors.InvalidArgument):
            _core.delta_apply(before, damaged)
        with pytest.raises(ringcoll.errors.InvalidArgument):
            _core.delta_apply(before, delta[:at])
    with pytest.raises(ringcoll.errors.InvalidArgument, match="3996"):
        _core.delta_apply(before[1:], delta)
    assert (before == unchanged).all()


def test_other_arguments_are_refused():
    before, now = versions("float32", 100, 0.1)
    room = room_for(now)
    read_only = now.copy()
    read_only.flags.writeable = False
    for call in (
        lambda: _core.delta_make(before[1:], now, room),
        lambda: _core.delta_make(before.view("int16"), now, room),
        lambda: _core.delta_make(before[::2], now[::2], room),
        lambda: _core.delta_make(before, now, b"read-only"),
        lambda: _core.delta_apply(read_only, room),
        lambda: _core.copy_checksum(before[1:], now),
        lambda: _core.copy_checksum(read_only, now),
        lambda: _core.checksum("text"),
    ):
        with pytest.raises(ringcoll.errors.InvalidArgument):
            call()


def test_a_checksum_is_of_the_bytes():
    _, now = versions("float32", 100_000, 0.1)
    copy = np.empty_like(now)
    total = _core.checksum(now)
    assert 0 <= total < 1 << 64
    assert _core.copy_checksum(copy, now) == total == _core.checksum(copy)
    assert (copy == now).all()
    copy.view("uint8")[-1] ^= 1
    assert _core.checksum(copy) != total
    assert _core.checksum(b"") == 0x2D06800538D394C2  # XXH3-64 of nothing


def test_the_gil_is_released():
    tensor = np.zeros(64 << 20, np.uint8)
    ended = threading.Event()
    ticks = 0

    def sum_it() -> None:
        for _ in range(20):
            _core.checksum(tensor)
        ended.set()

    thread = threading.Thread(target=sum_it)
    thread.start()
    while not ended.is_set():
        time.sleep(0.001)
        ticks += 1
    thread.join()
    # With the GIL held, this thread would get it 20 times at most.
    assert ticks > 21
