"""horovod.run() from a Python program, as a notebook does it: the function's results come back."""

import horovod
import results


def train(factor):
    import horovod.torch as hvd
    import torch

    hvd.init()
    total = hvd.allreduce(torch.full((1000,), factor * (hvd.rank() + 1)), op=hvd.Sum)
    facts = (hvd.rank(), hvd.size(), hvd.ringcoll_enabled(), total[0].item())
    hvd.shutdown()
    return facts


if __name__ == "__main__":
    results.write(0, returned=horovod.run(train, args=(2.0,), num_proc=2, use_gloo=True))
