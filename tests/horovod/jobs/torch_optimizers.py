"""What torch's optimizers do, and distributed ones did not: state, closures, zero_grad().

Argument: the folder for the results. A case is right if it has an empty text.
"""

import os
import warnings

import horovod.torch as hvd
import results
import torch

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
found = {}


def check(case, actual, expected):
    assert case not in found, case
    found[case] = "" if actual == expected else f"{actual!r}, and not {expected!r}"


def raised(function, *arguments, **options):
    try:
        function(*arguments, **options)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def parameter(value):
    return torch.nn.Parameter(torch.as_tensor(value).clone())


def plain(value):
    """A state or option without tensors, which compare by element."""
    if torch.is_tensor(value):
        return str(value.dtype), value.tolist()
    return value


def state_of(optimizer):
    return [
        [{k: plain(v) for k, v in optimizer.state.get(p, {}).items()} for p in group["params"]]
        for group in optimizer.param_groups
    ]


def stepped(make, value, steps=2):
    """An optimizer that has made some steps, and its parameter."""
    p = parameter(value)
    optimizer = make([p])
    for step in range(steps):
        optimizer.zero_grad()
        (p.double() * (step + 1.5)).sum().backward()
        optimizer.step()
    return optimizer, p


MAKERS = {
    "momentum and decay": lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.9, weight_decay=0.1),
    "plain": lambda p: torch.optim.SGD(p, lr=0.5, weight_decay=0.1),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.5),
    "AMSGrad": lambda p: torch.optim.Adam(p, lr=0.5, amsgrad=True, weight_decay=0.1),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.5, weight_decay=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.5, momentum=0.5, centered=True),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.5),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.5),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.5, weight_decay=0.1),
}


def broadcast_brings_everything(name, make, root):
    """The root has read a checkpoint; the others have made their optimizers just now, or used them.

    In the order of Horovod's documentation: weights first.
    """
    value = [1.0, -2.0]
    for others, steps in (("new", 0), ("used", 3)):
        saved, p_saved = stepped(make, value)
        saved.param_groups[0]["lr"] = 0.125
        saved.param_groups[0]["initial_lr"] = 0.25  # as a scheduler adds it
        if root == RANK:
            optimizer, p = saved, p_saved
        else:
            optimizer, p = stepped(make, value, steps)
        p.grad = torch.full([2], 7.0)
        wrapped = hvd.DistributedOptimizer(optimizer, named_parameters=[("p", p)])
        hvd.broadcast_parameters({"p": p.data}, root_rank=root)
        hvd.broadcast_optimizer_state(wrapped, root_rank=root)
        case = f"{name}, root {root}, others {others}"
        check(f"{case}: weights", p.tolist(), p_saved.tolist())
        check(f"{case}: state", state_of(wrapped), state_of(saved))
        options = [
            {k: v for k, v in o.param_groups[0].items() if k != "params"} for o in (wrapped, saved)
        ]
        check(f"{case}: options", *options)
        check(f"{case}: gradient", p.grad.tolist(), [7.0, 7.0])
        wrapped.zero_grad()
        for one in (p, p_saved):
            one.grad = torch.tensor([1.0, 2.0])
        wrapped.step()
        if root != RANK:
            saved.step()
        reached = hvd.allgather(p.detach(), name=f"{case}: weights").view(SIZE, 2)
        check(f"{case}: a step", reached.tolist(), [reached[0].tolist()] * SIZE)


def broadcast_of_other_states():
    make = MAKERS["momentum and decay"]
    # What the root has not, nobody has.
    optimizer, p = stepped(make, [1.0], steps=0 if RANK == 0 else 2)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    check("root without state", state_of(optimizer), [[{}]])

    # A state of another type than its weights', in another order of memory, an empty one.
    p = parameter(torch.ones(2, 3, 2, 2).to(memory_format=torch.channels_last).bfloat16())
    scalar, frozen = parameter(2.0), torch.nn.Parameter(torch.ones(3), requires_grad=False)
    optimizer = torch.optim.Adam([{"params": [p, frozen]}, {"params": [scalar], "lr": 0.5}])
    if RANK == 0:
        kept = torch.arange(24.0).view(2, 3, 2, 2).to(memory_format=torch.channels_last)
        optimizer.state[p] = {"master": kept, "step": torch.tensor(3.0), "what": ["list", None]}
        optimizer.state[scalar] = {"none": torch.empty(0), "flag": torch.tensor(True)}
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    master = torch.arange(24.0).view(2, 3, 2, 2)
    expected = [
        [
            {"master": plain(master), "step": ("torch.float32", 3.0), "what": ["list", None]},
            {},
        ],
        [{"none": ("torch.float32", []), "flag": ("torch.bool", True)}],
    ]
    check("states of every kind", state_of(optimizer), expected)
    kept = optimizer.state[p]["master"]
    check("order of memory", kept.is_contiguous(memory_format=torch.channels_last), True)

    # A rate that is a tensor, which something else holds as well.
    rate = torch.tensor(0.5 + RANK)
    optimizer = torch.optim.Adam([parameter([1.0])], lr=rate)
    hvd.broadcast_optimizer_state(optimizer, root_rank=SIZE - 1)
    check("rate as a tensor", rate.item(), 0.5 + SIZE - 1)
    check("the same rate", optimizer.param_groups[0]["lr"] is rate, True)

    # Models that differ are refused on all ranks, and nobody waits.
    optimizer, _ = stepped(make, [1.0] * (2 if RANK == SIZE - 1 else 3))
    text = raised(hvd.broadcast_optimizer_state, optimizer, 0)
    told = "ValueError" in text and f"rank {SIZE - 1}" in text and "[2]" in text and "[3]" in text
    check("another shape", told or text, True)
    optimizer = torch.optim.SGD([parameter([1.0])] * 1 + [parameter([1.0])] * (RANK == 1), lr=1.0)
    text = raised(hvd.broadcast_optimizer_state, optimizer, 0)
    check("another number", ("ValueError" in text and "rank 1" in text) or text, True)
    text = raised(hvd.broadcast_optimizer_state, torch.optim.LBFGS([parameter([1.0])]), 0)
    check("LBFGS", "LBFGS" in text or text, True)


def closures(name, options, passes=1):
    """As a plain optimizer whose closure has the average of the losses."""
    mean = (SIZE + 1) / 2
    for kind, make in {
        "SGD": lambda p: torch.optim.SGD(p, lr=0.25, momentum=0.5),
        "Adam": lambda p: torch.optim.Adam(p, lr=0.25),
        "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.5, max_iter=4),
        "LBFGS, searching": lambda p: torch.optim.LBFGS(
            p, max_iter=4, line_search_fn="strong_wolfe"
        ),
    }.items():
        p, q = parameter([1.0, 2.0]), parameter([1.0, 2.0])
        optimizer = hvd.DistributedOptimizer(
            make([p]),
            named_parameters=[(f"{name}, {kind}", p)],
            backward_passes_per_step=passes,
            **options,
        )
        alone = make([q])

        def closure_of(optimizer, parameter, factor):
            def closure():
                optimizer.zero_grad()
                for _ in range(passes):
                    loss = factor * (parameter * parameter - parameter).sum() / passes
                    loss.backward()
                return loss * passes

            return closure

        with warnings.catch_warnings():
            warnings.simplefilter("error")  # none says that synchronize() was called before
            for _ in range(3):
                loss = optimizer.step(closure_of(optimizer, p, RANK + 1.0))
                alone_loss = alone.step(closure_of(alone, q, mean))
        close = torch.allclose(p, q, rtol=1e-4)
        check(f"{name}: {kind}", close or (p.tolist(), q.tolist()), True)
        mine = mean if "LBFGS" in kind else RANK + 1.0
        scaled = float(alone_loss.detach()) * mine / mean
        near = abs(float(loss.detach()) - scaled) < 1e-3
        check(f"{name}: {kind}: loss", near or (loss, scaled), True)


def other_steps():
    p = parameter([0.0])
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([p], lr=1.0), named_parameters=[("other steps", p)]
    )
    average = (SIZE + 1) / 2

    def backward():
        (p * (RANK + 1.0)).sum().backward()

    # Gradients are under way when the step begins, and its closure makes others.
    def closure():
        optimizer.zero_grad()
        backward()

    backward()
    optimizer.step(closure)
    check("closure after backward", p.tolist(), [-average])

    # A closure that synchronizes itself.
    def synchronizing():
        optimizer.zero_grad()
        backward()
        optimizer.synchronize()

    with optimizer.skip_synchronize():
        optimizer.step(synchronizing)
    check("closure that synchronizes", p.tolist(), [-2 * average])

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.zero_grad()
        backward()
        optimizer.step()
    check("no closure", p.tolist(), [-3 * average])

    optimizer.zero_grad(set_to_none=False)
    check("zeros", p.grad.tolist(), [0.0])
    optimizer.zero_grad(set_to_none=True)
    check("none", p.grad, None)
    p.grad = torch.ones(1)
    optimizer.zero_grad(False)
    check("by place", p.grad.tolist(), [0.0])
    backward()
    check("too early", "AssertionError" in raised(optimizer.zero_grad, set_to_none=True), True)
    optimizer.synchronize()

    # The gradient of a scalar that torch negates by a bit.
    scalar = parameter(1.0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([scalar], lr=1.0), named_parameters=[("negated", scalar)]
    )
    scalar.grad = None
    scalar.register_post_accumulate_grad_hook(negate)
    (scalar * (RANK + 1.0)).backward()
    optimizer.step()
    check("negated gradient", scalar.item(), 1.0 + average)


def negate(param):
    param.grad = torch.complex(torch.zeros(()), param.grad).conj().imag
    assert param.grad.is_neg()


def wrapping():
    make = MAKERS["momentum and decay"]
    wrappers = {"average": {}, "Adasum": {"op": hvd.Adasum}}
    if os.environ["HOROVOD_CPU_OPERATIONS"].upper() == "GLOO":  # which has no Adasum
        del wrappers["Adasum"]
    for name, options in wrappers.items():
        optimizer, p = stepped(make, [1.0])
        before, calls = state_of(optimizer), []
        optimizer.register_step_pre_hook(lambda *_, calls=calls: calls.append("step"))
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        wrapped = hvd.DistributedOptimizer(optimizer, named_parameters=[("w", p)], **options)
        check(f"wrapping, {name}: state", state_of(wrapped), before)
        wrapped.add_param_group({"params": [parameter([3.0])]})
        check(f"wrapping, {name}: defaults", wrapped.param_groups[1]["momentum"], 0.9)
        wrapped.param_groups.pop()
        wrapped.zero_grad()
        (p * 1.0).sum().backward()
        wrapped.step()
        check(f"wrapping, {name}: hooks", calls if name == "average" else calls[:1], ["step"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            schedule.step()
        check(f"wrapping, {name}: schedule", wrapped.param_groups[0]["lr"], 0.25)
    # As the plain optimizer goes on.
    plain_optimizer, q = stepped(make, [1.0])
    optimizer, p = stepped(make, [1.0])
    wrapped = hvd.DistributedOptimizer(optimizer, named_parameters=[("w", p)])
    for one, parameter_of in ((plain_optimizer, q), (wrapped, p)):
        one.zero_grad()
        (parameter_of * 2.0).sum().backward()
        one.step()
    check("wrapping: a step", p.tolist(), q.tolist())


def main():
    for name, make in MAKERS.items():
        for root in (0, SIZE - 1):
            broadcast_brings_everything(name, make, root)
    broadcast_of_other_states()
    closures("closure", {})
    closures("closure, group", {"groups": 1})
    closures("closure, passes", {}, passes=2)
    other_steps()
    wrapping()
    results.write(RANK, found=found)
    hvd.shutdown()


main()
