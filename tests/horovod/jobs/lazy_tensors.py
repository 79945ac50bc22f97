"""Tensors of torch whose memory does not hold their values, through all operations.

Argument: the folder for the results. Not in place they are right, in place they are refused, with
the remedy; what has no memory at all is refused.
"""

import horovod.torch as hvd
import results
import torch

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
found = {}


def check(case, actual, expected):
    found[case] = "" if actual == expected else f"{actual!r}, and not {expected!r}"


def raised(function, *arguments, **options):
    try:
        function(*arguments, **options)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def negated(*shape):
    """-2 on rank 0, -3 on the next, by a bit."""
    x = torch.complex(torch.zeros(shape or ()), torch.full(shape or (), 2.0 + RANK))
    y = x.conj().imag
    return torch._neg_view(torch.full(shape, 2.0 + RANK)) if shape else y


scalar, vector = negated(), negated(SIZE)
assert scalar.is_neg() and vector.is_neg() and vector.is_contiguous()
mean = -2.0 - (SIZE - 1) / 2
everybody = [-2.0 - rank for rank in range(SIZE)]

check("maximum", hvd.allreduce(scalar, op=hvd.Max, name="max").item(), -2.0)
check("average", hvd.allreduce(vector, name="avg").tolist(), [mean] * SIZE)
check("compressed", hvd.allreduce(vector, compression=hvd.Compression.fp16).tolist(), [mean] * SIZE)
group = [torch.full([SIZE], 1.0), vector]
check(
    "group",
    [t.tolist() for t in hvd.grouped_allreduce(group, name="g")],
    [[1.0] * SIZE, [mean] * SIZE],
)
check("gather", hvd.allgather(negated(1), name="gather").tolist(), everybody)
check(
    "gathered group",
    [t.tolist() for t in hvd.grouped_allgather([negated(1)] * 2, name="gg")],
    [everybody] * 2,
)
check("broadcast", hvd.broadcast(vector, SIZE - 1, name="root").tolist(), [everybody[-1]] * SIZE)
check("alltoall", hvd.alltoall(vector, name="to all").tolist(), everybody)
check("scatter", hvd.reducescatter(vector, op=hvd.Sum, name="scatter").tolist(), [sum(everybody)])
check(
    "scattered group",
    [t.tolist() for t in hvd.grouped_reducescatter([vector] * 2, op=hvd.Sum, name="gs")],
    [[sum(everybody)]] * 2,
)
check("untouched", (scalar.item(), vector.tolist()), (-2.0 - RANK, [-2.0 - RANK] * SIZE))

for case, function, arguments in (
    ("allreduce_", hvd.allreduce_, (scalar,)),
    ("allreduce_async_", hvd.allreduce_async_, (vector,)),
    ("grouped_allreduce_", hvd.grouped_allreduce_, ([torch.ones(SIZE), vector],)),
    ("broadcast_", hvd.broadcast_, (scalar, 0)),
    ("broadcast_parameters", hvd.broadcast_parameters, ({"y": vector}, 0)),
):
    text = raised(function, *arguments)
    check(case, ("ValueError" in text and "resolve_neg()" in text) or text, True)
check("not touched in place", (scalar.item(), vector.tolist()), (-2.0 - RANK, [-2.0 - RANK] * SIZE))

# The remedy of the message.
copy = scalar.resolve_conj().resolve_neg()
hvd.allreduce_(copy, op=hvd.Max, name="remedy")
scalar.copy_(copy)
check("remedy", scalar.item(), -2.0)

OTHERS = {
    "complex": torch.ones(2, dtype=torch.complex64),
    "conjugated": torch.ones(2, dtype=torch.complex64).conj(),
    "sparse": torch.eye(2).to_sparse(),
    "compressed rows": torch.eye(2).to_sparse_csr(),
    "meta": torch.ones(2, device="meta"),
    "quantised": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8),
    "expanded": torch.ones(1).expand(2),
    "strided": torch.ones(4)[::2],
}
for kind, tensor in OTHERS.items():
    for case, function, arguments in (
        ("alone", hvd.allreduce, (tensor,)),
        ("in place", hvd.allreduce_, (tensor,)),
        ("gathered", hvd.allgather, (tensor,)),
        ("root's", hvd.broadcast_, (tensor, 0)),
        ("second of a group", hvd.grouped_allreduce, ([torch.ones(2), tensor],)),
        ("second of a gathered group", hvd.grouped_allgather, ([torch.ones(2), tensor],)),
        ("second of a scattered group", hvd.grouped_reducescatter, ([torch.ones(2), tensor],)),
    ):
        text = raised(function, *arguments)
        check(f"{kind}, {case}", "nothing" not in text or text, True)
text = raised(torch.vmap(lambda x: hvd.allreduce_(x)), torch.ones(2, 2))
check("within vmap", text != "nothing" or text, True)

# A refusal on all ranks leaves nothing behind.
check("afterwards", hvd.allreduce(torch.ones(1), op=hvd.Sum, name="afterwards").item(), SIZE)
results.write(RANK, found=found)
hvd.shutdown()
