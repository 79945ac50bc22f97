#include "ringcoll_repairs.h"

#include <chrono>
#include <thread>

#include "../timeline.h"

namespace horovod {
namespace common {

void end_tensor_queues(ProcessSetTable& table, const Status& status) {
  for (int32_t id : table.Ids()) table.Get(id).tensor_queue.FinalizeTensorQueue(status);
}

void TensorQueue::Open() {
  std::lock_guard<std::mutex> guard(mutex_);
  closed_ = false;
}

// Returns the tensors that wait, which are told when the lock is open.
std::unordered_map<std::string, TensorTableEntry> TensorQueue::Close() {
  std::unordered_map<std::string, TensorTableEntry> unfinished;
  std::lock_guard<std::mutex> guard(mutex_);
  closed_ = true;
  unfinished.swap(tensor_table_);
  return unfinished;
}

// Until the writer's thread has taken all records, for five seconds at most.
void TimelineWriter::AwaitWriter() {
  for (int i = 0; i < 5000 && active() && healthy(); ++i) {
    if (record_queue_.empty()) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace common
}  // namespace horovod
