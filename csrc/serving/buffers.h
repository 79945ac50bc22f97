// Shared memory for requests that do not fit into a slot. It is kept for the next ones, since fresh
// pages cost more than a copy.
#pragma once

#include <memory>
#include <vector>

#include "serving/memory.h"

namespace ringcoll::serving {

/// One thread at a time, but buffers may be given back by any.
class Buffers {
 public:
  explicit Buffers(remote::Agent& agent);

  /// Writable memory of at least so many bytes, which comes back here with its last owner. Throws
  /// Error(kTransport).
  std::shared_ptr<SharedBuffer> take(size_t bytes);
  /// For memory that a peer may still write to some time: it does not come back here.
  static void discard(const std::shared_ptr<SharedBuffer>& buffer);

 private:
  struct Free;
  remote::Agent& agent_;
  std::shared_ptr<Free> free_;
};

}  // namespace ringcoll::serving
