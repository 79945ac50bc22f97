// Helpers of the operations over ringcoll.
#pragma once

#include <exception>
#include <vector>

#include "../common.h"
#include "../global_state.h"

#pragma GCC visibility push(hidden)
namespace horovod {
namespace common {

/// Shows an activity in the timeline as long as the object lives.
class RingcollActivity {
 public:
  RingcollActivity(HorovodGlobalState* state, std::vector<TensorTableEntry>& entries,
                   const char* name)
      : state_(state), entries_(entries) {
    state_->timeline.ActivityStartAll(entries_, name);
  }
  ~RingcollActivity() { state_->timeline.ActivityEndAll(entries_); }
  RingcollActivity(const RingcollActivity&) = delete;

 private:
  HorovodGlobalState* state_;
  std::vector<TensorTableEntry>& entries_;
};

/// Runs the body of an operation. An exception becomes a status, so that none passes through
/// Horovod's code.
template <typename Body>
Status ringcoll_status(const Body& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    return Status::UnknownError(error.what());
  }
}

/// True if the tensors are in host memory.
inline bool ringcoll_fits(const std::vector<TensorTableEntry>& entries) {
  return entries.empty() || entries[0].device == CPU_DEVICE_ID;
}

}  // namespace common
}  // namespace horovod
#pragma GCC visibility pop
