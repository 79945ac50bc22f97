"""When the threads of Horovod run: at news, together, and not while they wait."""

from __future__ import annotations

from .anchored import Edit

# A cycle begins a fixed time after the one before began. Under the controller RINGCOLL it begins
# when something has been submitted, here or on another rank (compat/horovod/ringcoll_cycles.h).
_OPERATIONS = "horovod/common/operations.cc"
_QUEUE = "horovod/common/tensor_queue.cc"
_SETS = "horovod/common/process_set.cc"
_CYCLES = '#include "ringcoll/ringcoll_cycles.h"\n'
_SUBMITTED = "RingcollCycles::Get().Submitted();\n"
# Said when the queue's lock is open, which the thread that wakes takes.
_SUBMISSION = "  RingcollCycles::Submission submission;\n"
_AWAIT = "  if (!RingcollCycles::Get().Await())\n"

# Where the time is the user's or the autotuner's, it counts on each rank for itself, and a cycle
# ends when all ranks have agreed: so all wait for the rank whose cycles begin last, and a tensor
# that comes in between is a cycle late. Counted from the agreement, which is one moment for all,
# cycles begin together.
_TOGETHER = """    if (process_set_id == 0 && state.control_operation == LibType::RINGCOLL) {
      state.last_cycle_start = std::chrono::steady_clock::now();
    }

"""

# horovod.torch's synchronize() asked for the result again and again, and yielded its core in
# between. The thread that works for the result is on one of these cores.
_HEADER = "horovod/torch/handle_manager.h"
_SOURCE = "horovod/torch/handle_manager.cc"
_TELLER = """  // Wakes who waits when the lock is open, which that one takes.
  struct Teller {
    std::condition_variable& done;
    bool awaited = false;
    ~Teller() {
      if (awaited) {
        done.notify_all();
      }
    }
  };
"""
_WAIT = """// Until MarkDone() or Reset().
void HandleManager::Wait(int handle) {
  std::unique_lock<std::mutex> lock(mutex_);
  auto awaited = awaited_.insert(handle);
  done_.wait(lock, [&] {
    auto result = results_.find(handle);
    return result == results_.end() || result->second != nullptr;
  });
  awaited_.erase(awaited);
}

"""

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
    Edit(
        _OPERATIONS, r"^    // Get tensor name and size data for autotuning\.", _TOGETHER, "before"
    ),
    Edit(_HEADER, r"^#include <atomic>\n", "#include <condition_variable>\n"),
    Edit(_HEADER, r"^#include <mutex>\n", "#include <set>\n"),
    Edit(_HEADER, r"^  bool PollHandle\(int handle\);\n", "  void Wait(int handle);\n"),
    Edit(
        _HEADER,
        r"^  std::mutex mutex_;\n",
        _TELLER + "  std::condition_variable done_;\n  std::multiset<int> awaited_;\n",
    ),
    Edit(_SOURCE, r"^void HandleManager::MarkDone\(.*\n", "  Teller teller{done_};\n"),
    Edit(
        _SOURCE,
        r"^  results_\[handle\] = std::make_shared<Status>\(status\);\n",
        "  teller.awaited = awaited_.count(handle) > 0;\n",
    ),
    Edit(_SOURCE, r"^bool HandleManager::PollHandle", _WAIT, "before"),
    Edit(_SOURCE, r"^  results_\.clear\(\);\n", "  done_.notify_all();\n"),
    Edit(
        "horovod/torch/mpi_ops_v2.cc",
        r"std::this_thread::yield\(\);",
        "handle_manager.Wait(handle);",
        "instead",
    ),
]
