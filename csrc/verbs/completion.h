// The result of a work request. If it failed, only the id, the status, the queue pair and the
// vendor's code are valid (InfiniBand specification, volume 1, 11.4.2.1, "Poll for completion").
// The functions for all else throw then.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/error.h"

struct ibv_wc;

namespace ringcoll::verbs {

/// The statuses that a reliable connected queue pair can give; all others are kOther.
enum class Status : uint8_t {
  kSuccess,
  kLocalLength,
  kLocalOperation,
  kLocalProtection,
  kFlushed,
  kBadResponse,
  kLocalAccess,
  kRemoteInvalidRequest,
  kRemoteAccess,
  kRemoteOperation,
  kRetryExceeded,
  kReceiverNotReady,
  kRemoteAborted,
  kFatal,
  kResponseTimeout,
  kGeneral,
  kOther,
};

/// "retry exceeded", "flushed", …
const char* name_of(Status status);

/// The usual cause and remedy of a status, in a sentence or two. `retry_seconds`, if above 0, is
/// how long the device tried (retry_seconds() of queue_pair.h).
std::string explain(Status status, double retry_seconds = 0);

enum class Operation : uint8_t {
  kWrite,             // the peer has the bytes
  kRead,              // the peer's bytes are here
  kReceiveImmediate,  // a write with immediate of the peer is complete
  kReceive,
  kOther,
};

class Completion {
 public:
  Completion() = default;
  explicit Completion(const ibv_wc& wc);

  uint64_t id() const { return id_; }
  Status status() const { return status_; }
  bool ok() const { return status_ == Status::kSuccess; }
  uint32_t qp_num() const { return qp_num_; }
  uint32_t vendor_error() const { return vendor_error_; }

  /// Only for a successful completion: throws Error(kInternal) otherwise.
  Operation operation() const { return succeeded().operation_; }
  /// Bytes that arrived. Only for a successful receive.
  uint32_t bytes() const { return received().bytes_; }
  /// The peer's word, in the byte order of this host. Only for kReceiveImmediate.
  uint32_t immediate() const {
    invariant(operation() == Operation::kReceiveImmediate, "this completion has no immediate");
    return immediate_;
  }
  /// "retry exceeded (vendor error 0x81, queue pair 0x11): …", for messages.
  std::string text(double retry_seconds = 0) const;

 private:
  const Completion& succeeded() const {
    invariant(ok(), "a completion that failed ({}) says nothing of what was done",
              name_of(status_));
    return *this;
  }
  const Completion& received() const {
    invariant(operation() == Operation::kReceive || operation() == Operation::kReceiveImmediate,
              "only a receive says how many bytes came");
    return *this;
  }

  uint64_t id_ = 0;
  uint32_t qp_num_ = 0;
  uint32_t vendor_error_ = 0;
  uint32_t bytes_ = 0;
  uint32_t immediate_ = 0;
  Status status_ = Status::kOther;
  Operation operation_ = Operation::kOther;
};

}  // namespace ringcoll::verbs
