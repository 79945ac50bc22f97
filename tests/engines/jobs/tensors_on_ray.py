"""Tensors from actor to actor by ringcoll, on a Ray of this host: argv is the folder of Ray and the
file for what was found."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import ray
import torch

from ringcoll import ray_transport

ray_transport.register()
ray_transport.register()  # again: does nothing

DTYPES = [
    torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32,
    torch.float64, torch.complex64, torch.float8_e4m3fn,
]  # fmt: skip


def several():
    square = torch.arange(10_000, dtype=torch.float32).reshape(100, 100)
    return {
        "dtypes": [torch.arange(1000).to(dtype) for dtype in DTYPES],
        "transposed": square.t(),
        "strided": square[::2, 1::3],
        "conjugated": torch.tensor([1 + 2j]).conj(),
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 4),
        "parameter": torch.nn.Parameter(torch.ones(5)),
        "text": "not a tensor",
    }


def fingerprint(value):
    """What is the same where the tensors are the same."""
    if isinstance(value, torch.Tensor):
        plain = value.detach().resolve_conj().contiguous().reshape(-1)
        content = plain.view(torch.uint8)
        return [str(value.dtype), list(value.shape), content.tolist()[:64], int(content.sum())]
    if isinstance(value, dict):
        return {name: fingerprint(each) for name, each in value.items()}
    return [fingerprint(each) for each in value] if isinstance(value, list) else value


def transport():
    from ray.experimental.rdt.util import get_tensor_transport_manager

    return get_tensor_transport_manager("RINGCOLL")


@ray.remote(num_cpus=0)
class Actor:
    def pid(self):
        return os.getpid()

    @ray.method(tensor_transport="ringcoll")
    def several(self):
        return several()

    @ray.method(tensor_transport="ringcoll")
    def large(self, megabytes):
        self.kept = torch.full((megabytes << 18,), 2.0)
        return self.kept

    def fingerprint(self, value):
        return fingerprint(value)

    def total(self, *tensors):
        return sum(float(tensor.double().sum()) for tensor in tensors)

    def regions(self):
        agent = transport()._agent
        return agent.stats()["regions"] if agent else 0

    def put(self):
        return [ray.put(torch.ones(1000), _tensor_transport="ringcoll")]


def become(actor, regions, seconds=10):
    """How many regions the actor has, once they are as many, or after some seconds."""
    end = time.monotonic() + seconds
    while (found := ray.get(actor.regions.remote())) != regions and time.monotonic() < end:
        time.sleep(0.05)
    return found


def outcome_of(reference):
    """The error's class, its text or the value, and how long it took to come."""
    begin = time.monotonic()
    try:
        found = ["", float(ray.get(reference, timeout=60))]
    except Exception as error:
        found = [type(error).__name__, str(error)]
    return [*found, time.monotonic() - begin]


def end(pid):
    os.kill(pid, signal.SIGKILL)
    while Path(f"/proc/{pid}").exists():
        time.sleep(0.01)


def values(one, two):
    value = one.several.remote()
    passed = ray.get(two.fingerprint.remote(value))
    got = fingerprint(ray.get(value))
    tensors = [one.large.remote(megabytes) for megabytes in (1, 2, 3)]
    total = ray.get(two.total.remote(*tensors))
    own = ray.get(one.total.remote(tensors[0]))
    ours = ray.put({"x": torch.arange(5.0)}, _tensor_transport="ringcoll")
    from_driver = ray.get(two.fingerprint.remote(ours))
    [theirs] = ray.get(one.put.remote())
    return {
        "expected": fingerprint(several()),
        "passed": passed,
        "got": got,
        "total": total,
        "own": own,
        "from driver": from_driver,
        "expected put": fingerprint({"x": torch.arange(5.0)}),
        "of a put": float(ray.get(theirs).sum()),
    }


def garbage(one, two):
    before = become(one, 0)
    references = [one.large.remote(1) for _ in range(3)]
    ray.get(two.total.remote(*references))
    during = become(one, 3)
    del references
    return [before, during, become(one, 0), become(two, 0)]


def target_buffers(one, two):
    reference = one.large.remote(1)
    buffer = torch.zeros(1 << 18)
    ray.experimental.set_target_for_ref(reference, [buffer])
    ray.get(reference)
    return float(buffer.sum())


def lost(two, megabytes, when, **variables):
    """An actor that is lost with the tensor that another one wants."""
    actor = Actor.options(runtime_env={"env_vars": variables}).remote()
    reference = actor.large.remote(megabytes)
    pid = ray.get(actor.pid.remote())
    if when == "before":
        assert ray.get(two.total.remote(reference)) == megabytes << 19
        end(pid)
        return outcome_of(two.total.remote(reference))
    if when == "meanwhile":
        waiting = two.total.remote(reference)
        time.sleep(0.02)
        end(pid)
        return outcome_of(waiting)
    assert when == "stopped"
    assert ray.get(two.total.remote(reference)) == megabytes << 19
    os.kill(pid, signal.SIGSTOP)
    outcome = outcome_of(two.total.remote(reference))
    end(pid)
    return outcome


folder, output = sys.argv[1:]
ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 << 20, _temp_dir=folder)
try:
    one, two = Actor.remote(), Actor.remote()
    found = {
        "values": values(one, two),
        "garbage": garbage(one, two),
        "target": target_buffers(one, two),
        "killed before": lost(two, 8, "before"),
        "killed meanwhile": lost(two, 256, "meanwhile"),
        "killed elsewhere": lost(two, 8, "before", RINGCOLL_HOSTID="elsewhere"),
        "killed meanwhile elsewhere": lost(two, 256, "meanwhile", RINGCOLL_HOSTID="elsewhere"),
        "stopped elsewhere": lost(two, 8, "stopped", RINGCOLL_HOSTID="elsewhere"),
        "after": ray.get(two.total.remote(one.large.remote(1))),
    }
finally:
    ray.shutdown()
Path(output).write_text(json.dumps(found))
