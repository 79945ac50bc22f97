"""Elastic training on two "hosts" of one machine; the rank alone on its host is to go: by the
test's hand, or with the argument "raises" by itself."""

import os
import sys
import time

import horovod.torch as hvd
import results
import torch

hvd.init()
sizes = []
resets = 0


@hvd.elastic.run
def train(state):
    while state.step < 40:
        total = hvd.allreduce(torch.ones(1000), op=hvd.Sum, name="total")[0].item()
        assert total == hvd.size()
        if not sizes or sizes[-1] != hvd.size():
            sizes.append(hvd.size())
        if hvd.size() == 3:
            # Nothing goes on before one has died.
            if os.environ["HOROVOD_HOSTNAME"] == "127.0.0.1":
                results.put("victim", str(os.getpid()))
                if sys.argv[2:] == ["raises"]:
                    raise RuntimeError("made up")
            time.sleep(0.05)
        else:
            state.step += 1
        state.commit()


def count_reset():
    global resets
    resets += 1


state = hvd.elastic.TorchState(step=0)
state.register_reset_callbacks([count_reset])
train(state)
results.write(hvd.rank(), sizes=sizes, resets=resets, ringcoll=hvd.ringcoll_enabled())
hvd.shutdown()
