#include "ringcoll_repairs.h"

#include <chrono>
#include <cstdio>
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

// Returns the waiting tensors. The caller tells them after it has released the lock.
std::unordered_map<std::string, TensorTableEntry> TensorQueue::Close() {
  std::unordered_map<std::string, TensorTableEntry> unfinished;
  std::lock_guard<std::mutex> guard(mutex_);
  closed_ = true;
  unfinished.swap(tensor_table_);
  return unfinished;
}

std::string json_text(const std::string& name) {
  std::string text;
  for (char c : name) {
    if (c == '"' || c == '\\') text += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) {
      text += c;
      continue;
    }
    char escape[7];
    std::snprintf(escape, sizeof(escape), "\\u%04x", static_cast<unsigned>(c));
    text += escape;
  }
  return text;
}

// Waits until the writer's thread has taken all records, for 5 s at most.
void TimelineWriter::AwaitWriter() {
  for (int i = 0; i < 5000 && active() && healthy(); ++i) {
    if (record_queue_.empty()) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace common
}  // namespace horovod
