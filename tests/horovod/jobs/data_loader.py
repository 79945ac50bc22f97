"""Training that reads by a DataLoader: its worker processes are forked from a rank at work."""

import horovod.torch as hvd
import results
import torch

hvd.init()
hvd.init()  # once more does nothing
ringcoll = hvd.ringcoll_enabled()
torch.manual_seed(1)
data = torch.utils.data.TensorDataset(torch.arange(64.0).reshape(64, 1))
sampler = torch.utils.data.distributed.DistributedSampler(data, hvd.size(), hvd.rank())
loader = torch.utils.data.DataLoader(data, 4, sampler=sampler, num_workers=2)
model = torch.nn.Linear(1, 1)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
seen = 0
for epoch in range(3):
    sampler.set_epoch(epoch)
    # The workers of this epoch are forked while this is on its way.
    handle = hvd.allreduce_async(torch.ones(2_000_000), op=hvd.Sum, name=f"epoch{epoch}")
    for (batch,) in loader:
        seen += len(batch)
        optimizer.zero_grad()
        model(batch).pow(2).mean().backward()
        optimizer.step()
    assert hvd.synchronize(handle).eq(hvd.size()).all()
weights = [p.tolist() for p in model.parameters()]
results.write(hvd.rank(), seen=seen, weights=weights, ringcoll=ringcoll)
hvd.shutdown()
