"""Adasum by torch: what each rank gave and got goes into one npz file, and bfloat16 as float32."""

import os
import sys
from pathlib import Path

import horovod.torch as hvd
import numpy as np
import torch

DTYPES = [torch.float16, torch.float32, torch.float64]
if os.environ["HOROVOD_CPU_OPERATIONS"].upper() == "RINGCOLL":
    DTYPES.append(torch.bfloat16)
SHAPES = {"scalar": (), "one": (1,), "two": (2,), "odd": (7, 3), "prime": (10007,)}

hvd.init()
rank, size = hvd.rank(), hvd.size()
results = {}


def keep(case, which, tensor):
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    key = f"{case} {which}"
    assert key not in results, key
    results[key] = tensor.detach().numpy().copy()


def given(shape, dtype, seed):
    generator = torch.Generator().manual_seed(seed * 10 + rank)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def reduced(case, tensor, **options):
    keep(case, "given", tensor)
    keep(case, "found", hvd.allreduce(tensor, op=hvd.Adasum, name=case, **options))


def special(dtype):
    """Vectors whose sums are known: the same one, orthogonal ones, and zeros."""
    name = str(dtype)
    reduced(f"{name} parallel", torch.arange(1, 20).to(dtype))
    unit = torch.zeros(max(size, 8), dtype=dtype)
    unit[rank] = rank + 1
    reduced(f"{name} orthogonal", unit)
    zero = given((33,), dtype, 8) if rank == 0 else torch.zeros(33, dtype=dtype)
    reduced(f"{name} zero", zero)
    reduced(f"{name} all zero", torch.zeros(5, dtype=dtype))


def fused(dtype):
    """Several tensors of a group: each has coefficients of its own."""
    group = [given((5 + 13 * i,), dtype, 20 + i) * 10.0**i for i in range(4)]
    found = hvd.grouped_allreduce(group, op=hvd.Adasum, name=f"group {dtype}")
    for i, (before, after) in enumerate(zip(group, found, strict=True)):
        keep(f"{dtype} group {i}", "given", before)
        keep(f"{dtype} group {i}", "found", after)


for dtype in DTYPES:
    for seed, (label, shape) in enumerate(SHAPES.items()):
        reduced(f"{dtype} {label}", given(shape, dtype, seed))
    special(dtype)
    fused(dtype)
    inside = given((101,), dtype, 40)
    keep(f"{dtype} in place", "given", inside)
    hvd.allreduce_(inside, op=hvd.Adasum)
    keep(f"{dtype} in place", "found", inside)
    scaled = given((64,), dtype, 41)
    keep(f"{dtype} scaled", "given", scaled * 2)
    found = hvd.allreduce(scaled, op=hvd.Adasum, prescale_factor=2.0, postscale_factor=0.5)
    keep(f"{dtype} scaled", "found", found * 2)
large = given((1 << 20,), torch.float32, 42)
for again in range(2):  # the second time from the response cache
    keep(f"large {again}", "given", large)
    keep(f"large {again}", "found", hvd.allreduce(large, op=hvd.Adasum, name="large"))

torch.manual_seed(7)
model = torch.nn.Linear(6, 2)
before = {name: weights.detach().clone() for name, weights in model.named_parameters()}
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.5),
    named_parameters=model.named_parameters(),
    op=hvd.Adasum,
)
optimizer.zero_grad()
model(given((8, 6), torch.float32, 50)).square().mean().backward()
optimizer.step()
for name, weights in model.named_parameters():
    keep(f"step {name}", "given", -0.5 * weights.grad)
    keep(f"step {name}", "found", weights - before[name])

np.savez(Path(sys.argv[1]) / f"rank{rank}.npz", **results)
