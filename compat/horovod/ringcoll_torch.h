// Additions to horovod.torch: waits for results, and operations of types that it lacks.
//
// Not hidden, since the code around it is not; only horovod.torch includes this.
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

/// Keeps which threads wait for which handles. The owner has the results, and the lock that guards
/// them and this object.
class RingcollWaiters {
 public:
  using Results = std::unordered_map<int, std::shared_ptr<common::Status>>;

  /// Sleeps until the handle has a result or is gone. Precondition: the caller does not hold the
  /// lock.
  void Wait(int handle, std::mutex& mutex, const Results& results) {
    std::unique_lock<std::mutex> lock(mutex);
    auto awaited = awaited_.insert(handle);
    done_.wait(lock, [&] {
      auto result = results.find(handle);
      return result == results.end() || result->second != nullptr;
    });
    awaited_.erase(awaited);
  }

  /// Wakes up all threads when all handles are gone. Precondition: the lock is held.
  void WakeAll() { done_.notify_all(); }

  /// Wakes up the threads that wait for a handle when it is destroyed. Declare it before the lock
  /// is taken, since a woken thread takes that lock.
  class Teller {
   public:
    explicit Teller(RingcollWaiters& waiters) : waiters_(waiters) {}
    ~Teller() {
      if (awaited_) waiters_.done_.notify_all();
    }
    Teller(const Teller&) = delete;

    /// Says that the handle has its result. Precondition: the lock is held.
    void Tell(int handle) { awaited_ = waiters_.awaited_.count(handle) > 0; }

   private:
    RingcollWaiters& waiters_;
    bool awaited_ = false;
  };

 private:
  std::condition_variable done_;
  std::multiset<int> awaited_;
};

/// Defines an operation in the module of horovod.torch for more types, named as torch names their
/// tensors. `on_gpu` handles GPU tensors through host memory.
template <typename Module, typename Types, typename OnHost, typename OnGpu>
void ringcoll_bind(Module& module, const std::string& operation, const Types& types, OnHost on_host,
                   OnGpu on_gpu) {
  std::string name = "horovod_torch_" + operation + "_async_torch_";
  for (const char* type : types) {
    module.def((name + type + "Tensor").c_str(), on_host);
    module.def((name + "cuda_" + type + "Tensor").c_str(), on_gpu);
  }
}

/// The types that Horovod's own lists lack: for operations that reduce, and for those that move
/// data.
constexpr const char* kRingcollReduced[] = {"Byte", "Char", "Short", "UInt16", "Bool", "BFloat16"};
constexpr const char* kRingcollMoved[] = {"UInt16", "Bool", "BFloat16"};

}  // namespace torch
}  // namespace horovod
