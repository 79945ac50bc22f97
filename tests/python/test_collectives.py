"""Every collective on NumPy and torch tensors of every type, in place and not, on 1 to 4 processes.

All values are small integers, so that sums and products are exact in every type and results can be
compared bit by bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ringcoll

ml_dtypes = pytest.importorskip("ml_dtypes")
torch = pytest.importorskip("torch")

SIZES = (1, 2, 3, 4)
DTYPES = [
    np.dtype(name)
    for name in (
        "u1",
        "i1",
        "u2",
        "i2",
        "u4",
        "i4",
        "u8",
        "i8",
        "f2",
        ml_dtypes.bfloat16,
        "f4",
        "f8",
        "?",
    )
]
TORCH_DTYPES = [
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.bool,
]
SHAPES = [(), (0,), (1,), (7,), (3, 5), (4099,)]


def values(shape: tuple[int, ...], rank: int, dtype: Any, salt: int = 0) -> np.ndarray:
    """What the rank contributes: 0 to 3, or truth values."""
    count = int(np.prod(shape))
    return ((np.arange(count) * 7 + 3 * rank + salt) % 4).reshape(shape).astype(dtype)


def combined(op: str, parts: list[np.ndarray]) -> np.ndarray:
    dtype = parts[0].dtype
    if dtype == np.bool_:
        rule = np.logical_or if op in ("sum", "max", "bit_or") else np.logical_and
        return rule.reduce(parts)
    wide = np.stack(parts).astype("f8" if dtype.kind in "fV" else "i8")
    if op == "average":
        return (
            np.trunc(wide.sum(0) / len(parts)).astype(dtype)
            if dtype.kind in "iu"
            else (wide.sum(0) / len(parts)).astype(dtype)
        )
    rule = {
        "sum": np.add,
        "min": np.minimum,
        "max": np.maximum,
        "product": np.multiply,
        "bit_and": np.bitwise_and,
        "bit_or": np.bitwise_or,
    }[op]
    return rule.reduce(wide, axis=0).astype(dtype)


def ops_of(dtype: np.dtype) -> list[str]:
    ops = ["sum", "min", "max", "product"]
    return [*ops, "bit_and", "bit_or"] if dtype.kind in "iub" else ops


def same(got: np.ndarray, wanted: np.ndarray, what: Any) -> None:
    assert got.dtype == wanted.dtype and got.shape == wanted.shape, (
        what,
        got.dtype,
        got.shape,
        wanted.shape,
    )
    assert got.tobytes() == wanted.tobytes(), (what, got, wanted)


@pytest.mark.parametrize("size", SIZES)
def test_allreduce_and_reduce(run_ranks, size):
    def body(world):
        for dtype in DTYPES:
            for shape in SHAPES:
                parts = [values(shape, rank, dtype) for rank in range(size)]
                for op in ops_of(dtype):
                    x, wanted = parts[world.rank].copy(), combined(op, parts)
                    same(world.allreduce(x, op), wanted, (op, dtype, shape))
                    same(x, parts[world.rank], "the input is unchanged")
                    out = np.empty_like(x)
                    assert world.allreduce(x, op, out=out) is out
                    same(out, wanted, (op, "out"))
                    assert world.allreduce(x, op, out=x) is x
                    same(x, wanted, (op, "in place"))
                    result = world.reduce(parts[world.rank], op, root=size - 1)
                    if world.rank == size - 1:
                        same(result, wanted, ("reduce", op, dtype, shape))
                    else:
                        assert result is None

    run_ranks(size, body)


def neutral(op: str, dtype: np.dtype) -> Any:
    if dtype.kind == "b":
        return op in ("min", "product", "bit_and")
    if op in ("min", "max"):
        if dtype.kind in "iu":
            return np.iinfo(dtype).max if op == "min" else np.iinfo(dtype).min
        return np.inf if op == "min" else -np.inf
    return {"sum": 0, "product": 1, "bit_and": -1, "bit_or": 0}[op]


@pytest.mark.parametrize("size", SIZES)
def test_scan_and_exscan(run_ranks, size):
    def body(world):
        for dtype in DTYPES:
            for shape in SHAPES:
                parts = [values(shape, rank, dtype) for rank in range(size)]
                for op in ops_of(dtype):
                    x = parts[world.rank].copy()
                    wanted = combined(op, parts[: world.rank + 1])
                    same(world.scan(x, op), wanted, ("scan", op, dtype, shape))
                    same(world.scan_async(x, op).wait(), wanted, ("scan_async", op))
                    if world.rank:
                        wanted = combined(op, parts[: world.rank])
                    else:
                        wanted = np.full(shape, neutral(op, dtype)).astype(dtype)
                    same(world.exscan(x, op), wanted, ("exscan", op, dtype, shape))
                    same(x, parts[world.rank], "the input is unchanged")
                    assert world.exscan(x, op, out=x) is x
                    same(x, wanted, (op, "in place"))
        for call in (world.scan, world.exscan, world.scan_async, world.exscan_async):
            with pytest.raises(ringcoll.InvalidArgument, match="pass sum"):
                call(np.ones(1), "average")
        offset = world.exscan(np.array([world.rank + 1]))
        assert offset.tolist() == [world.rank * (world.rank + 1) // 2]

    run_ranks(size, body)


@pytest.mark.parametrize("size", SIZES)
def test_average_and_factors(run_ranks, size):
    def body(world):
        ones = np.full(1000, 6.0 * (world.rank + 1))
        mean = 6 * sum(range(1, size + 1)) / size
        np.testing.assert_allclose(world.allreduce(ones, "average"), mean, rtol=1e-12)
        np.testing.assert_allclose(
            world.allreduce(ones, prescale=0.5, postscale=3), 1.5 * size * mean, rtol=1e-12
        )
        assert world.allreduce(ones, prescale=0).tolist() == [0.0] * 1000
        assert world.allreduce(ones, postscale=0).tolist() == [0.0] * 1000
        factors = {"prescale": 0.5, "postscale": 3}
        reduced = world.reduce(ones, "average", size - 1, **factors)
        if world.rank == size - 1:
            np.testing.assert_allclose(reduced, 1.5 * mean, rtol=1e-12)
        parts = world.reduce_scatter(ones[: 6 * size], "average", **factors)
        np.testing.assert_allclose(parts, np.full(6, 1.5 * mean), rtol=1e-12)
        if size in (1, 2, 4):  # a size that divides without rounding
            for dtype in DTYPES:
                parts = [values((100,), rank, dtype) for rank in range(size)]
                if dtype != np.bool_:
                    same(
                        world.allreduce(parts[world.rank], "average"),
                        combined("average", parts),
                        dtype,
                    )

    run_ranks(size, body)


@pytest.mark.parametrize("size", SIZES)
def test_broadcast_allgather_gather(run_ranks, size):
    def body(world):
        for dtype in DTYPES:
            for shape in SHAPES:
                parts = [values(shape, rank, dtype) for rank in range(size)]
                mine = parts[world.rank]
                for root in {0, size - 1}:
                    same(world.broadcast(mine, root), parts[root], ("broadcast", dtype, shape))
                    x = mine.copy()
                    assert world.broadcast(x, root, out=x) is x
                    same(x, parts[root], "broadcast in place")
                whole = np.concatenate([np.atleast_1d(part) for part in parts])
                same(world.allgather(mine), whole, ("allgather", dtype, shape))
                gathered = world.gather(mine, root=size - 1)
                if world.rank == size - 1:
                    same(gathered, whole, ("gather", dtype, shape))
                else:
                    assert gathered is None

    run_ranks(size, body)


@pytest.mark.parametrize("size", SIZES)
def test_parts_of_different_length(run_ranks, size):
    counts = [5, 0, 3, 1][:size]

    def body(world):
        rank = world.rank
        for dtype in DTYPES:
            for row in ((), (2, 3)):
                parts = [values((counts[r], *row), r, dtype) for r in range(size)]
                whole = np.concatenate(parts)
                same(world.allgather(parts[rank], counts), whole, ("allgather", dtype))
                out = np.empty_like(whole)
                assert world.allgather(parts[rank], np.array(counts), out=out) is out
                same(out, whole, ("allgather", dtype, "out"))
                gathered = world.gather(parts[rank], root=0, counts=counts)
                assert rank == 0 or gathered is None
                if rank == 0:
                    same(gathered, whole, ("gather", dtype))
                mine = np.empty((counts[rank], *row), dtype)
                x = whole if rank == size - 1 else None
                assert world.scatter(x, size - 1, counts, out=mine) is mine
                same(mine, parts[rank], ("scatter", dtype))
                vectors = [values((sum(counts), *row), r, dtype) for r in range(size)]
                begin = sum(counts[:rank])
                wanted = combined("sum", vectors)[begin : begin + counts[rank]]
                same(
                    world.reduce_scatter(vectors[rank], counts=counts),
                    wanted,
                    ("reduce_scatter", dtype),
                )

    run_ranks(size, body)


@pytest.mark.parametrize("size", SIZES)
def test_equal_parts(run_ranks, size):
    def body(world):
        rank = world.rank
        for dtype in DTYPES:
            for rows, row in ((1, ()), (3, (2,)), (0, ()), (1025, ())):
                wholes = [values((rows * size, *row), r, dtype, salt=5) for r in range(size)]
                cuts = [np.split(whole, size) for whole in wholes]
                for op in ops_of(dtype):
                    same(
                        world.reduce_scatter(wholes[rank], op),
                        combined(op, [c[rank] for c in cuts]),
                        ("reduce_scatter", op, dtype),
                    )
                same(
                    world.alltoall(wholes[rank]),
                    np.concatenate([c[rank] for c in cuts]),
                    ("alltoall", dtype),
                )
                if rank == 0:
                    same(world.scatter(wholes[0]), cuts[0][0], ("scatter", dtype))
                else:
                    out = np.empty_like(cuts[0][rank])
                    same(world.scatter(None, out=out), cuts[0][rank], ("scatter", dtype))

    run_ranks(size, body)


@pytest.mark.parametrize("size", SIZES)
def test_alltoall_of_different_lengths(run_ranks, size):
    def sent(source: int, target: int) -> int:
        return (source + 2 * target) % 4

    def body(world):
        rank = world.rank
        send = [sent(rank, target) for target in range(size)]
        recv = [sent(source, rank) for source in range(size)]
        for dtype in DTYPES:
            cuts = [
                [values((sent(s, t), 2), 10 * s + t, dtype) for t in range(size)]
                for s in range(size)
            ]
            x, wanted = np.concatenate(cuts[rank]), np.concatenate([cut[rank] for cut in cuts])
            same(world.alltoall(x, send, recv), wanted, ("alltoall", dtype))
            same(world.alltoall(x, send), wanted, ("alltoall that asks for the counts", dtype))
            same(world.alltoall_async(x, send, recv).wait(), wanted, ("alltoall_async", dtype))

    run_ranks(size, body)


@pytest.mark.parametrize("size", SIZES)
def test_torch(run_ranks, size):
    def body(world):
        torch.set_num_threads(1)
        rank = world.rank
        for dtype in TORCH_DTYPES:
            for shape in SHAPES:
                parts = [torch.from_numpy(values(shape, r, "i4")).to(dtype) for r in range(size)]
                wide = torch.stack(parts).to(torch.float64).sum(0)
                total = wide.to(torch.bool if dtype == torch.bool else dtype)
                got = world.allreduce(parts[rank])
                assert (
                    isinstance(got, torch.Tensor)
                    and got.dtype == dtype
                    and got.shape == total.shape
                )
                assert torch.equal(got, total), (dtype, shape, got, total)
                x = parts[rank].clone()
                assert world.allreduce(x, out=x) is x and torch.equal(x, total)
                whole = torch.cat([part.reshape(1) if not shape else part for part in parts])
                assert torch.equal(world.allgather(parts[rank]), whole)
                assert torch.equal(world.broadcast(parts[rank], size - 1), parts[size - 1])
                assert torch.equal(world.allreduce_async(parts[rank]).wait(), total)
                halves = torch.cat(parts) if shape else whole
                if shape:
                    assert torch.equal(world.alltoall(torch.cat([parts[rank]] * size)), halves)
        parameter = torch.nn.Parameter(torch.full((5,), float(rank)))
        world.broadcast(parameter.detach(), root=0, out=parameter.detach())
        assert parameter.eq(0).all()

    run_ranks(size, body)


def test_many_tensors_travel_as_one(run_ranks):
    def body(world):
        shapes = [(3,), (), (0,), (64, 65), (1,)]
        for make in (np.array, torch.tensor):
            mine = [make(values(shape, world.rank, "f4").tolist()) for shape in shapes]
            results = world.allreduce(mine)
            assert world.allreduce(mine, out=mine) is mine
            for shape, result, replaced in zip(shapes, results, mine, strict=True):
                wanted = combined("sum", [values(shape, rank, "f4") for rank in range(3)])
                assert np.array_equal(np.asarray(result), wanted) and np.array_equal(
                    np.asarray(replaced), wanted
                )
            given = [make(values(shape, world.rank, "f4").tolist()) for shape in shapes]
            for shape, tensor in zip(shapes, world.broadcast(given, root=1), strict=True):
                assert np.array_equal(np.asarray(tensor), values(shape, 1, "f4"))
        reduced = world.reduce([np.ones(2), np.arange(3.0)], root=2)
        if world.rank == 2:
            assert [one.tolist() for one in reduced] == [[3, 3], [0, 3, 6]]
        else:
            assert reduced is None

    run_ranks(3, body)


def test_anything_with_a_buffer(run_ranks):
    def body(world):
        from array import array

        assert world.allreduce(bytes([1, 2, 3])).tolist() == [2, 4, 6]
        numbers = array("d", [1.5, 2.5])
        assert world.allreduce(numbers, out=numbers) is numbers and list(numbers) == [3.0, 5.0]
        raw = bytearray(b"\x01\x02")
        assert world.allgather(memoryview(raw)).tolist() == [1, 2, 1, 2]
        assert world.allreduce(np.float32(1.5)) == 3.0

    run_ranks(2, body)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_large_and_equal_on_all_ranks(run_ranks, transport):
    def body(world):
        x = np.random.default_rng(world.rank).standard_normal(3_000_001).astype("f4")
        return [world.allreduce(x).tobytes(), world.allreduce(x, "average").tobytes()]

    results = run_ranks(3, body, env={"RINGCOLL_TRANSPORT": transport})
    assert results[0] == results[1] == results[2]
    wanted = np.sum(
        [np.random.default_rng(r).standard_normal(3_000_001).astype("f4") for r in range(3)],
        axis=0,
        dtype="f8",
    )
    np.testing.assert_allclose(np.frombuffer(results[0][0], "f4"), wanted, rtol=1e-4, atol=1e-5)
