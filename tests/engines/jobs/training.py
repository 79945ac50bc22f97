"""What every engine is given to run: some steps of training, and what a rank saw of them."""


def train(rounds=5):
    """Facts that can be sent: the weights, alike on all ranks, and what carried them."""
    import horovod.torch as hvd

    hvd.init()
    found = _train(hvd, rounds)
    hvd.shutdown()
    return found


def train_elastically(rounds=5):
    """The same, with a failure of all ranks in the middle."""
    import horovod.torch as hvd
    from horovod.common.exceptions import HorovodInternalError

    hvd.init()
    resets = []

    @hvd.elastic.run
    def body(state):
        if not resets:
            resets.append(True)
            raise HorovodInternalError("made up")
        return _train(hvd, rounds)

    found = body(hvd.elastic.TorchState(step=0)) | {"resets": len(resets)}
    hvd.shutdown()
    return found


def _train(hvd, rounds):
    import torch

    torch.manual_seed(hvd.rank())
    model = torch.nn.Linear(50, 20)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
    )
    for _ in range(rounds):
        optimizer.zero_grad()
        model(torch.randn(8, 50)).square().mean().backward()
        optimizer.step()
    return {
        "rank": hvd.rank(),
        "size": hvd.size(),
        "local_size": hvd.local_size(),
        "ringcoll": bool(hvd.ringcoll_enabled()),
        "weights": torch.cat([p.detach().flatten() for p in model.parameters()]).tolist(),
    }
