"""Types of torch that Horovod itself refuses; what each operation should give is computed here."""

import horovod.torch as hvd
import results
import torch

REDUCED = [torch.bfloat16, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.bool]
MOVED = [torch.bfloat16, torch.uint16, torch.bool]
OPS = {"Sum": torch.sum, "Min": torch.amin, "Max": torch.amax, "Product": torch.prod}

hvd.init()
rank, size = hvd.rank(), hvd.size()
cases = 0


def given(of, dtype, shape=(1001,)):
    """What rank `of` contributes: whole numbers, so that every type and order is exact."""
    generator = torch.Generator().manual_seed(of)
    return torch.randint(0, 3, shape, generator=generator).to(dtype)


def expect(actual, expected, case):
    global cases
    cases += 1
    assert actual.dtype == expected.dtype, (case, actual.dtype, expected.dtype)
    # torch itself does not compare all these types.
    assert torch.equal(actual.double(), expected.double()), (case, actual, expected)


def combined(op, dtype, shape=(1001,)):
    every = torch.stack([given(of, dtype, shape) for of in range(size)])
    if dtype == torch.bool:
        return every.any(0) if op in ("Sum", "Max") else every.all(0)
    return OPS[op](every.double(), 0).to(dtype)


def part(tensor):
    """The rows of this rank after a reducescatter."""
    return tensor.tensor_split(size)[rank]


def reductions(dtype):
    mine = given(rank, dtype)
    for op in OPS:
        code = getattr(hvd, op)
        expect(hvd.allreduce(mine, op=code), combined(op, dtype), (dtype, op))
        inside = mine.clone()
        hvd.allreduce_(inside, op=code)
        expect(inside, combined(op, dtype), (dtype, op, "in place"))
        for found in hvd.grouped_allreduce([mine, mine], op=code):
            expect(found, combined(op, dtype), (dtype, op, "grouped"))
    rows = given(rank, dtype, (7, 3))
    total = part(combined("Sum", dtype, (7, 3)))
    expect(hvd.reducescatter(rows, op=hvd.Sum), total, (dtype, "reducescatter"))
    for found in hvd.grouped_reducescatter([rows, rows], op=hvd.Sum):
        expect(found, total, (dtype, "grouped reducescatter"))
    for shape in ((0,), ()):
        expect(
            hvd.allreduce(given(rank, dtype, shape), op=hvd.Max),
            combined("Max", dtype, shape),
            (dtype, shape),
        )


def movements(dtype):
    every = [given(of, dtype, (3 + of, 2)) for of in range(size)]
    expect(hvd.allgather(every[rank]), torch.cat(every), (dtype, "allgather"))
    for found in hvd.grouped_allgather([every[rank], every[rank]]):
        expect(found, torch.cat(every), (dtype, "grouped allgather"))
    same = [given(of, dtype) for of in range(size)]
    expect(hvd.broadcast(same[rank], 1), same[1], (dtype, "broadcast"))
    inside = same[rank].clone()
    hvd.broadcast_(inside, 0)
    expect(inside, same[0], (dtype, "broadcast in place"))
    splits = [torch.tensor([1 + of, 2]) for of in range(size)]
    sent = [given(of, dtype, (3 + of, 2)).split(splits[of].tolist()) for of in range(size)]
    found, received = hvd.alltoall(every[rank], splits[rank].int())
    expect(found, torch.cat([of[rank] for of in sent]), (dtype, "alltoall"))
    expect(received, torch.stack(splits)[:, rank].int(), (dtype, "received splits"))


def factors():
    mine = given(rank, torch.bfloat16)
    total = combined("Sum", torch.bfloat16)
    expect(hvd.allreduce(mine), (total.float() / size).bfloat16(), "average")
    scaled = hvd.allreduce(mine, op=hvd.Sum, prescale_factor=0.5, postscale_factor=8.0)
    expect(scaled, total * 4, "scaled")
    fine = torch.full((5,), 1.0 + rank / 128, dtype=torch.bfloat16)  # the last bit of the type
    expect(hvd.allreduce(fine, op=hvd.Max), torch.full_like(fine, 1 + (size - 1) / 128), "last bit")
    try:
        hvd.allreduce(given(rank, torch.bool))
    except hvd.mpi_ops.HorovodInternalError as error:
        assert "Type bool not supported" in str(error), error
    else:
        raise AssertionError("an average of bool should be refused")


def gradients():
    def leaf(shape):
        return torch.ones(shape, dtype=torch.bfloat16, requires_grad=True)

    def check(case, operation, shape, expected):
        tensor = leaf(shape)
        found = operation(tensor)
        found.backward(torch.ones_like(found))
        expect(tensor.grad, torch.full_like(tensor, expected), case)

    check("d allreduce", lambda t: hvd.allreduce(t, op=hvd.Sum), (5,), size)
    check("d allgather", hvd.allgather, (3, 2), 1)
    check("d broadcast", lambda t: hvd.broadcast(t, 0), (5,), 1 if rank == 0 else 0)
    check("d alltoall", hvd.alltoall, (2 * size,), 1)
    check("d reducescatter", lambda t: hvd.reducescatter(t, op=hvd.Sum), (2 * size,), size)
    grouped = [leaf((5,)), leaf((2, 2))]
    found = hvd.grouped_allreduce(grouped, op=hvd.Sum)
    torch.autograd.backward(found, [torch.ones_like(t) for t in found])
    for tensor in grouped:
        expect(tensor.grad, torch.full_like(tensor, size), "d grouped allreduce")


def compression():
    mine = given(rank, torch.float32)
    total = combined("Sum", torch.float32)
    for name in ("fp16", "bf16"):
        by = getattr(hvd.Compression, name)
        expect(hvd.allreduce(mine, op=hvd.Sum, compression=by), total, name)
        whole = given(rank, torch.int32)
        expect(hvd.allreduce(whole, op=hvd.Sum, compression=by), combined("Sum", torch.int32), name)
    large = torch.full((3,), 1e38)  # too large for float16
    bf16 = hvd.Compression.bf16
    expect(hvd.allreduce(large, op=hvd.Max, compression=bf16), large.bfloat16().float(), "range")


def training():
    torch.manual_seed(rank)
    model = torch.nn.Linear(4, 2).bfloat16()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
    )
    for step in range(3):
        optimizer.zero_grad()
        model(given(rank + size * step, torch.bfloat16, (8, 4))).square().mean().backward()
        optimizer.step()
    for name, weights in model.state_dict().items():
        everywhere = hvd.allgather(weights[None])
        assert not torch.equal(everywhere[0], torch.zeros_like(everywhere[0]))
        expect(everywhere, everywhere[:1].expand(size, *weights.shape), ("trained", name))


def joined():
    for step in range(2 if rank == 0 else 1):
        there = size if step == 0 else 1
        ones = torch.ones(7, dtype=torch.bfloat16)
        expect(hvd.allreduce(ones, op=hvd.Sum, name=f"join{step}"), ones * there, "join")
    expect(torch.tensor(hvd.join()), torch.tensor(0), "last joined")


for dtype in REDUCED:
    reductions(dtype)
for dtype in MOVED:
    movements(dtype)
factors()
gradients()
compression()
training()
joined()
results.write(rank, cases=cases)
