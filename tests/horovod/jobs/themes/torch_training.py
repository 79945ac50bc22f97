"""DistributedOptimizer in all its variants, and what brings the ranks to the same state."""

import warnings

import horovod.torch as hvd
import torch
from counting import align


class Net(torch.nn.Module):
    """Some dense layers, an embedding, which can have sparse gradients, and a layer without use."""

    def __init__(self, sparse=False):
        super().__init__()
        torch.manual_seed(11)
        self.embedding = torch.nn.Embedding(20, 4, sparse=sparse)
        self.first = torch.nn.Linear(4, 8)
        self.second = torch.nn.Linear(8, 1)
        self.unused = torch.nn.Linear(3, 3)

    def forward(self, words):
        return self.second(torch.tanh(self.first(self.embedding(words).mean(1))))


def words(step):
    generator = torch.Generator().manual_seed(100 * step + hvd.rank())
    return torch.randint(0, 20, (6, 3), generator=generator)


def train(record, case, net, optimizer, passes=1, steps=3):
    for step in range(steps):
        optimizer.zero_grad()
        for part in range(passes):
            net(words(step * passes + part)).square().mean().backward()
        optimizer.step()
    for name, parameter in net.named_parameters():
        record.keep(f"{case} {name}", parameter)


def variants(record, others):
    """Weights after a few steps on data that differ from rank to rank."""
    for case, options in {
        "plain": {},
        "sum": {"op": hvd.Sum},
        "compressed": {"compression": hvd.Compression.fp16},
        "predivided": {"gradient_predivide_factor": 2.0},
        "three groups": {"groups": 3},
        "sparse as dense": {"sparse_as_dense": True},
        "unnamed": {"named_parameters": None},
    }.items():
        net = Net(sparse=case == "sparse as dense")
        inner = torch.optim.SGD(net.parameters(), lr=0.1)
        options = {"named_parameters": net.named_parameters(), **options}
        train(record, case, net, hvd.DistributedOptimizer(inner, **options))

    net = Net(sparse=True)
    inner = torch.optim.SGD(net.parameters(), lr=0.1)
    train(record, "sparse", net, hvd.DistributedOptimizer(inner, net.named_parameters()))

    net = Net()
    inner = torch.optim.Adam(net.parameters(), lr=0.1)
    groups = [[net.first.weight, net.second.weight], [net.first.bias]]
    options = {"groups": groups, "backward_passes_per_step": 2}
    optimizer = hvd.DistributedOptimizer(inner, net.named_parameters(), **options)
    train(record, "accumulated", net, optimizer, passes=2)

    if others.included():
        net = Net()
        inner = torch.optim.SGD(net.parameters(), lr=0.1)
        optimizer = hvd.DistributedOptimizer(inner, net.named_parameters(), process_set=others)
        train(record, "process set", net, optimizer)


def gradients_by_hand(record):
    """Clipping between synchronize() and step(), parameters that are frozen and thawed."""
    net = Net()
    inner = torch.optim.SGD(net.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(inner, net.named_parameters())
    net(words(1)).square().mean().backward()
    optimizer.synchronize()
    record.keep("clipped norm", torch.nn.utils.clip_grad_norm_(net.parameters(), 0.01))
    with optimizer.skip_synchronize():
        optimizer.step()
    record.keep("clipped", net.second.weight)
    for frozen in (True, False):
        net.first.requires_grad_(not frozen)
        optimizer.zero_grad()
        net(words(2)).square().mean().backward()
        optimizer.step()
        record.keep(f"frozen {frozen}", net.first.weight)
    net(words(3)).square().mean().backward()
    optimizer.synchronize()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        optimizer.step()
    record.keep("step without skip_synchronize", [str(one.message) for one in seen])


def states(record):
    """Parameters, optimizers and objects that differ are those of the root afterwards."""
    root = hvd.size() - 1
    makers = {
        "SGD": lambda p: torch.optim.SGD(p, lr=0.1 + hvd.rank(), momentum=0.9),
        "Adam": lambda p: torch.optim.Adam(p, lr=0.1 + hvd.rank(), amsgrad=True),
        "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.1 + hvd.rank(), centered=True),
        "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1 + hvd.rank()),
    }
    for case, make in makers.items():
        torch.manual_seed(hvd.rank())
        net = torch.nn.Linear(3, 2)
        optimizer = make(net.parameters())
        if hvd.rank() == root:
            net(torch.ones(5, 3)).sum().backward()
            optimizer.step()
        hvd.broadcast_parameters(net.state_dict(), root)
        record.attempt(f"{case} state", hvd.broadcast_optimizer_state, optimizer, root)
        record.keep(f"{case} rate", optimizer.param_groups[0]["lr"])
        record.keep(f"{case} weight", net.weight)
        for key, held in sorted(optimizer.state_dict()["state"].get(0, {}).items()):
            record.keep(f"{case} {key}", "None" if held is None else held)
    mine = {"rank": hvd.rank(), "text": "x" * (1000 * hvd.rank()), "nested": [1, (2, None)]}
    record.keep("object", repr(hvd.broadcast_object(mine, root)))
    record.keep("objects", repr(hvd.allgather_object(mine)))


def refusals(record):
    """What is refused before anything is sent."""
    net = Net()
    inner = torch.optim.SGD(net.parameters(), lr=0.1)
    half = list(net.named_parameters())[:1]
    double = [*net.named_parameters(), *net.named_parameters()]
    for case, names, options in (
        ("half of the names", half, {}),
        ("names that occur twice", double, {}),
        ("predivided sum", None, {"gradient_predivide_factor": 2.0, "op": hvd.Sum}),
        ("no backward pass", None, {"backward_passes_per_step": 0}),
        ("groups of another kind", None, {"groups": 1.5}),
    ):
        try:
            hvd.DistributedOptimizer(inner, names, **options)
            record.keep(case, "accepted")
        except Exception as error:
            record.fail(case, error)
    lbfgs = torch.optim.LBFGS(net.parameters())
    record.attempt("LBFGS", hvd.broadcast_optimizer_state, lbfgs, 0)
    # Horovod's SyncBatchNorm of torch works on GPUs alone.
    record.attempt("SyncBatchNorm", hvd.SyncBatchNorm(3), torch.ones(2, 3))


def run(record, sets):
    align()
    variants(record, sets["others"])
    align()
    gradients_by_hand(record)
    states(record)
    refusals(record)
