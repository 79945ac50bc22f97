"""Elastic training that fails on all ranks again and again: what a process holds after each reset.

The second argument is the framework, the third the number of resets."""

import os
import sys
from collections import Counter
from pathlib import Path

import results
from horovod.common.exceptions import HorovodInternalError

FRAMEWORK, RESETS = sys.argv[2], int(sys.argv[3])
if FRAMEWORK == "torch":
    import horovod.torch as hvd
    import torch

    def total(step):
        return hvd.allreduce(torch.full((1000,), float(step)), op=hvd.Sum, name="total")[0].item()

    def make_state():
        return hvd.elastic.TorchState(step=0)

else:
    import horovod.tensorflow as hvd
    import tensorflow as tf

    def total(step):
        filled = tf.fill([1000], float(step))
        return float(hvd.allreduce(filled, op=hvd.Sum, name="total")[0])

    def make_state():
        return hvd.elastic.TensorFlowState(variables=[tf.Variable(1.0)], step=0)


def kind_of(entry):
    """Of a descriptor, as an entry of /proc/self/fd."""
    kind = str(entry.readlink()).split(":")[0]
    if kind == "socket":
        return "socket"
    if kind == "pipe":
        # Of a pipe one has an end, but to ring the bell of another rank (csrc/shm/bell.h), whose
        # pipe is opened for both by who wakes it for the first time: by chance in each life.
        info = Path("/proc/self/fdinfo", entry.name).read_text()
        flags = int(info.split("flags:")[1].split()[0], 8)
        if flags & os.O_ACCMODE == os.O_RDWR:
            return "bells"
    return "fd"


def lasting_threads():
    """Counts threads, without the one that makes connections, which ends soon by itself."""
    count = 0
    for task in Path("/proc/self/task").iterdir():
        try:
            count += (task / "comm").read_text() != "ringcoll-dial\n"
        except OSError:  # it has ended
            continue
    return count


def held():
    """What a reset could leave behind, by kind."""
    found = Counter(threads=lasting_threads(), bells=0)
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found[kind_of(entry)] += 1
        except OSError:
            continue
    maps = Path("/proc/self/maps").read_text()
    found["arenas"] = maps.count("/memfd:ringcoll")
    found["shm"] = len([p for p in Path("/dev/shm").iterdir() if "ringcoll" in p.name])
    return found


hvd.init()
seen = []


@hvd.elastic.run
def train(state):
    while state.step < RESETS:
        assert total(state.step) == state.step * hvd.size()
        seen.append(held())
        state.step += 1
        state.commit()
        total(0)  # not committed: must not be undone twice
        raise HorovodInternalError("made up")


state = make_state()
train(state)
results.write(hvd.rank(), seen=seen, step=state.step, ringcoll=hvd.ringcoll_enabled())
hvd.shutdown()
