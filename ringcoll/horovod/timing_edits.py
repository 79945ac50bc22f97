"""Edits of Horovod's scheduling: cycles begin on submission, on all ranks together, and waiting
threads sleep."""

from __future__ import annotations

from .anchored import Edit

# Horovod begins a cycle at a fixed interval after the one before. With the controller RINGCOLL a
# cycle begins when any rank has submitted something (compat/horovod/ringcoll_cycles.h).
_OPERATIONS = "horovod/common/operations.cc"
_QUEUE = "horovod/common/tensor_queue.cc"
_SETS = "horovod/common/process_set.cc"
_CYCLES = '#include "ringcoll/ringcoll_cycles.h"\n'
_SUBMITTED = "RingcollCycles::Get().Submitted();\n"
# Notifies after the queue's lock is released, since the thread that it wakes takes that lock.
_SUBMISSION = "  RingcollCycles::Submission submission;\n"
_AWAIT = "  if (!RingcollCycles::Get().Await())\n"

# Horovod's synchronize() for torch polls for the result and yields its core in between. That takes
# time from the thread that computes the result. With these edits it sleeps.
_HEADER = "horovod/torch/handle_manager.h"
_SOURCE = "horovod/torch/handle_manager.cc"

TIMING_EDITS = [
    Edit(_OPERATIONS, r'^#include "utils/env_parser\.h"\n', _CYCLES, "before"),
    Edit(_OPERATIONS, r"^  if \(sleep_duration > ", _AWAIT, "before"),
    Edit(_OPERATIONS, r"^    horovod_global\.shut_down = true;\n", "    " + _SUBMITTED),
    Edit(_QUEUE, r'^#include "tensor_queue\.h"\n', _CYCLES),
    Edit(_QUEUE, r"^Status TensorQueue::AddToTensorQueue\(.*\n", _SUBMISSION),
    Edit(_QUEUE, r"^Status TensorQueue::AddToTensorQueueMulti\(.*\n.*\n", _SUBMISSION),
    Edit(_SETS, r'^#include "controller\.h"\n', _CYCLES),
    Edit(_SETS, r"^  ids_\.push_back\(id\);\n", "  " + _SUBMITTED),
    Edit(_SETS, r"^  id_to_be_removed_ = process_set_id;\n", "  " + _SUBMITTED),
    # Cycles that begin at a fixed interval begin at the same time on all ranks.
    Edit(
        _OPERATIONS,
        r"^    // Get tensor name and size data for autotuning\.",
        "    ringcoll_agreed(state, process_set_id);\n\n",
        "before",
    ),
    Edit(
        _HEADER,
        r'^#include "\.\./common/common\.h"\n',
        '#include "../common/ringcoll/ringcoll_torch.h"\n',
    ),
    Edit(
        _HEADER,
        r"^  bool PollHandle\(int handle\);\n",
        "  void Wait(int handle) { waiters_.Wait(handle, mutex_, results_); }\n",
    ),
    Edit(_HEADER, r"^  std::mutex mutex_;\n", "  RingcollWaiters waiters_;\n"),
    Edit(
        _SOURCE,
        r"^void HandleManager::MarkDone\(.*\n",
        "  RingcollWaiters::Teller teller(waiters_);\n",
    ),
    Edit(
        _SOURCE,
        r"^  results_\[handle\] = std::make_shared<Status>\(status\);\n",
        "  teller.Tell(handle);\n",
    ),
    Edit(_SOURCE, r"^  results_\.clear\(\);\n", "  waiters_.WakeAll();\n"),
    Edit(
        "horovod/torch/mpi_ops_v2.cc",
        r"std::this_thread::yield\(\);",
        "handle_manager.Wait(handle);",
        "instead",
    ),
]
