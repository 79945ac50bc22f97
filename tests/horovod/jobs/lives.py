"""Many lives of Horovod in one process, between init and shutdown.

Arguments: the folder for the records, and one of

- settings: a mixture of everything under each of Horovod's variables, which must not change a
  result. What a life has switched on stays on in some cases (Horovod reads, but never resets it),
  so these come last;
- timeline: the first of these lives alone, which says what all are to give;
- autotune: a life with that and no other;
- stalls: a tensor that one rank alone submits, and groups of which it has another size;
- departures: one rank leaves while the other waits for it.
"""

import os
import sys
from pathlib import Path

import horovod.torch as hvd
import torch
from recording import Record, from_launcher

DEFAULTS = {
    "HOROVOD_CACHE_CAPACITY": "1024",
    "HOROVOD_CYCLE_TIME": "1",
    "HOROVOD_FUSION_THRESHOLD": str(1 << 27),
    "HOROVOD_THREAD_AFFINITY": None,
    "HOROVOD_TIMELINE": None,
    "HOROVOD_TIMELINE_MARK_CYCLES": None,
    "HOROVOD_STALL_CHECK_DISABLE": None,
    "HOROVOD_STALL_CHECK_TIME_SECONDS": None,
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": None,
}
SETTINGS = {
    "timeline": {
        "HOROVOD_TIMELINE": str(Path(sys.argv[1]) / "timeline.json"),
        "HOROVOD_TIMELINE_MARK_CYCLES": "1",
    },
    "defaults": {},
    "no cache": {"HOROVOD_CACHE_CAPACITY": "0"},
    "small cache": {"HOROVOD_CACHE_CAPACITY": "3"},
    "short cycle": {"HOROVOD_CYCLE_TIME": "0.1"},
    "long cycle": {"HOROVOD_CYCLE_TIME": "15"},
    "no fusion": {"HOROVOD_FUSION_THRESHOLD": "0"},
    "little fusion": {"HOROVOD_FUSION_THRESHOLD": "256"},
    "affinity": {"HOROVOD_THREAD_AFFINITY": ",".join("0" * from_launcher("SIZE"))},
    "affinity to nothing": {"HOROVOD_THREAD_AFFINITY": "no number"},
    "stall check off": {"HOROVOD_STALL_CHECK_DISABLE": "1"},
    "hierarchy": {"HOROVOD_HIERARCHICAL_ALLREDUCE": "1", "HOROVOD_HIERARCHICAL_ALLGATHER": "1"},
    "group fusion off": {"HOROVOD_DISABLE_GROUP_FUSION": "1"},
    "group fusion off, no cache": {"HOROVOD_CACHE_CAPACITY": "0"},
    "asynchronous completion": {"HOROVOD_ENABLE_ASYNC_COMPLETION": "1"},
}
# In a job of its own: nothing may have been fixed before that is to be tuned.
AUTOTUNE = {
    "HOROVOD_AUTOTUNE": "1",
    "HOROVOD_AUTOTUNE_LOG": str(Path(sys.argv[1]) / "autotune.csv"),
    "HOROVOD_CYCLE_TIME": None,
    "HOROVOD_FUSION_THRESHOLD": None,
}


def mixture(record, label):
    """Several times the same, so that it comes from the cache from the second time on."""
    for step in range(40 if label == "autotune" else 4):
        handles = {}

        def submit(case, function, *arguments, handles=handles, **options):
            handles[case] = function(*arguments, name=case, **options)

        mine = torch.arange(24.0) + hvd.rank()
        for i in range(12):
            dtype = (torch.float32, torch.int32, torch.float16)[i % 3]
            submit(f"sum {i}", hvd.allreduce_async, mine[i:].to(dtype), op=hvd.Sum)
            submit(f"gather {i}", hvd.allgather_async, mine[: i * hvd.rank()].to(dtype))
        group = [mine[2 * i :] * step for i in range(4)]  # GLOO scatters no odd count reliably
        submit("group", hvd.grouped_allreduce_async, group, op=hvd.Average)
        submit("gathered group", hvd.grouped_allgather_async, group)
        submit("scattered group", hvd.grouped_reducescatter_async, group, op=hvd.Sum)
        submit("root", hvd.broadcast_async, mine, hvd.size() - 1)
        submit("alltoall", hvd.alltoall_async, mine[: 4 * hvd.size()])
        submit("scatter", hvd.reducescatter_async, mine, op=hvd.Average)
        for case, handle in handles.items():
            record.attempt(f"{label}: {case} {step}", hvd.synchronize, handle)
    # The autotuner does not know tensors that are made for ranks that have joined.
    if label != "autotune":
        for step in range(hvd.rank()):
            record.keep(f"{label}: joined {step}", hvd.allreduce(torch.ones(3), name=f"j{step}"))
        record.keep(f"{label}: last", hvd.join())


def apply(setting):
    for name, value in {**DEFAULTS, **setting}.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


def under_settings(record, settings):
    for label, setting in settings.items():
        apply(setting)
        hvd.init()
        mixture(record, label)
        hvd.barrier()
        if "HOROVOD_TIMELINE" in setting:
            hvd.stop_timeline()  # writes what is queued, which a shutdown drops
        hvd.shutdown()
        record.attempt(f"{label}: rank after shutdown", hvd.rank)


def stalls(record):
    """The stall inspector ends the life, and another can begin."""
    apply({"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "2"})
    for capacity in ("0", "1024"):
        os.environ["HOROVOD_CACHE_CAPACITY"] = capacity
        hvd.init()
        record.keep(f"before the stall {capacity}", hvd.allreduce(torch.ones(2), name="cached"))
        if hvd.rank() == 0:
            record.attempt(f"alone {capacity}", hvd.allreduce, torch.ones(2), name="cached")
        else:
            record.attempt(f"others {capacity}", hvd.barrier)
        record.attempt(f"late {capacity}", hvd.allreduce, torch.ones(2), name="late")
        hvd.shutdown()
        hvd.init()
        group = [torch.ones(2)] * (2 + min(hvd.rank(), 1))
        record.attempt(f"group {capacity}", hvd.grouped_allreduce, group, name="group")
        hvd.shutdown()
    apply({})
    hvd.init()
    record.keep("after the stalls", hvd.allreduce(torch.ones(2), op=hvd.Sum))
    hvd.shutdown()


def departures(record):
    """Told that the others have left, rank 0 submits the next tensor at once."""
    for life in range(30):
        hvd.init()
        hvd.allreduce(torch.ones(2), name="together")
        if hvd.rank() == 0:
            record.attempt(f"waiting {life}", hvd.allreduce, torch.ones(2), name="alone")
            record.attempt(f"next {life}", hvd.allreduce, torch.ones(2), name="next")
        hvd.shutdown()


def main():
    record = Record()
    record.attempt("rank before init", hvd.rank)
    record.attempt("allreduce before init", hvd.allreduce, torch.ones(2))
    match sys.argv[2]:
        case "settings":
            under_settings(record, SETTINGS)
        case "timeline":
            under_settings(record, {"timeline": SETTINGS["timeline"]})
        case "autotune":
            under_settings(record, {"autotune": AUTOTUNE})
        case "stalls":
            stalls(record)
        case "departures":
            departures(record)
    record.attempt("allreduce after shutdown", hvd.allreduce, torch.ones(2))
    record.save(Path(sys.argv[1]) / f"lives.{from_launcher('RANK')}.pickle")


main()
