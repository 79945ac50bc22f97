// What is added to horovod.torch: waiting for results, and operations of types that it lacks.
//
// Not hidden, as what it is part of is not: only horovod.torch has this code.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>

#include "../common.h"

namespace horovod {
namespace torch {

/// Who waits for the results of which handles. The results, and the lock that guards them and all
/// of this, are their owner's.
class RingcollWaiters {
 public:
  using Results = std::unordered_map<int, std::shared_ptr<common::Status>>;

  /// Sleeps until the handle has a result, or is gone. The caller does not hold the lock.
  void Wait(int handle, std::mutex& mutex, const Results& results) {
    std::unique_lock<std::mutex> lock(mutex);
    auto awaited = awaited_.insert(handle);
    done_.wait(lock, [&] {
      auto result = results.find(handle);
      return result == results.end() || result->second != nullptr;
    });
    awaited_.erase(awaited);
  }

  /// Under the lock: all handles are gone.
  void WakeAll() { done_.notify_all(); }

  /// Wakes who waits for a handle. Declared before the lock is taken, as whoever wakes takes it.
  class Teller {
   public:
    explicit Teller(RingcollWaiters& waiters) : waiters_(waiters) {}
    ~Teller() {
      if (awaited_) waiters_.done_.notify_all();
    }
    Teller(const Teller&) = delete;

    /// Under the lock: the handle has its result.
    void Tell(int handle) { awaited_ = waiters_.awaited_.count(handle) > 0; }

   private:
    RingcollWaiters& waiters_;
    bool awaited_ = false;
  };

 private:
  std::condition_variable done_;
  std::multiset<int> awaited_;
};

/// Defines an operation in the module of horovod.torch for more types, as their tensors are called.
/// Those on a GPU go by host memory.
template <typename Module, typename Types, typename OnHost, typename OnGpu>
void ringcoll_bind(Module& module, const std::string& operation, const Types& types, OnHost on_host,
                   OnGpu on_gpu) {
  std::string name = "horovod_torch_" + operation + "_async_torch_";
  for (const char* type : types) {
    module.def((name + type + "Tensor").c_str(), on_host);
    module.def((name + "cuda_" + type + "Tensor").c_str(), on_gpu);
  }
}

/// What Horovod's own lists leave out: of operations that reduce, and of those that move.
constexpr const char* kRingcollReduced[] = {"Byte", "Char", "Short", "UInt16", "Bool", "BFloat16"};
constexpr const char* kRingcollMoved[] = {"UInt16", "Bool", "BFloat16"};

}  // namespace torch
}  // namespace horovod
