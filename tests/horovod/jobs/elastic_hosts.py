"""Elastic training while hosts come and go; tells the test when it may change them."""

import os
import time

import horovod.torch as hvd
import results
import torch

hvd.init()
sizes = []
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


@hvd.elastic.run
def train(state):
    while state.steps_of_two < 20:
        optimizer.zero_grad()
        model(torch.ones(8, 4) * (1 + hvd.rank())).sum().backward()
        optimizer.step()
        weights = hvd.allgather_object(model.weight.detach().numpy().tobytes())
        assert len(set(weights)) == 1, "the ranks' weights differ"
        if not sizes or sizes[-1] != hvd.size():
            sizes.append(hvd.size())
        state.step += 1
        # The first two ranks go through all: 2, 3 and again 2 ranks.
        if hvd.size() == 2 and 3 in state.seen:
            state.steps_of_two += 1
        elif hvd.size() == 3 and 3 not in state.seen:
            state.seen = [*state.seen, 3]
        if hvd.rank() == 0:
            results.put(f"size{hvd.size()}", str(state.step))
        time.sleep(0.05)
        state.commit()


state = hvd.elastic.TorchState(model, optimizer, step=0, steps_of_two=0, seen=[])
train(state)
results.write(
    hvd.rank(), sizes=sizes, step=state.step, host=os.environ["HOROVOD_HOSTNAME"], size=hvd.size()
)
hvd.shutdown()
