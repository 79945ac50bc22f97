#include "serving/memory.h"

#include "base/error.h"
#include "base/log.h"
#include "remote/pool.h"

namespace ringcoll::serving {
namespace {

// How long a peer may be in the middle of a write to memory that is not wanted any more.
constexpr Duration kClosing = std::chrono::seconds(1);

}  // namespace

OpenRegion::OpenRegion(remote::Agent& agent, void* data, size_t bytes, bool writable)
    : agent_(agent), region_(agent.open(data, bytes, writable)) {}

OpenRegion::~OpenRegion() { close(); }

bool OpenRegion::close() {
  if (!region_) return true;
  try {
    agent_.close(region_, Deadline(kClosing));
  } catch (const Error& error) {
    log_warning("memory of a table's request stays in use: {}", error.what());
    return false;
  }
  region_.reset();
  return true;
}

SharedBuffer::SharedBuffer(remote::Agent& agent, size_t bytes, bool writable)
    : bytes_(bytes), data_(remote::Pool::of_process().allocate(bytes)) {
  try {
    region_ = std::make_unique<OpenRegion>(agent, data_, bytes, writable);
  } catch (...) {
    remote::Pool::of_process().release(data_);
    throw;
  }
}

SharedBuffer::~SharedBuffer() {
  if (region_->close()) remote::Pool::of_process().release(data_);
}

}  // namespace ringcoll::serving
