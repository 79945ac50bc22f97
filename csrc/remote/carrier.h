// What carries chunks of copies between this process and one other agent: a connection
// (remote/link.h), at whose other end the owner's thread serves them, or a queue pair
// (remote/rdma_pair.h), where the device does. The dispatcher shares chunks out among carriers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "remote/batch.h"
#include "remote/frames.h"

namespace ringcoll::remote {

/// How bytes have travelled.
enum class Way : uint8_t { kHost, kTcp, kRdma };

/// A chunk of a copy, or its notice.
struct Request {
  uint64_t id = 0;                    // repeated in the answer
  FrameKind kind = FrameKind::kRead;  // or kWrite, kNotice
  std::shared_ptr<Batch> batch;
  const Copy* copy = nullptr;      // of the batch
  const Source* source = nullptr;  // of the copy
  uint64_t offset = 0;             // in the copy
  uint64_t bytes = 0;

  std::byte* local() const { return copy->local + offset; }
  uint64_t region_offset() const { return source->offset + offset; }
};

/// Any thread. Answers come to the Dispatcher, on the loop's thread.
class Carrier {
 public:
  virtual ~Carrier() = default;
  /// How well it suits this region; 0: not at all. Of the carriers to an agent only those that suit
  /// best are used. Takes no lock that is held while `wanted` of ask() is called.
  virtual int suits(const RegionHandle& region, bool notice) const = 0;
  /// The most bytes that it may have outstanding in reads, and in writes: they go opposite ways.
  virtual uint64_t window_bytes() const = 0;
  /// Begins a request. `wanted` is asked with the carrier's lock; nothing begins if it returns
  /// false.
  virtual void ask(const Request& request, const std::function<bool()>& wanted) = 0;
  /// Once this has returned, the carrier neither reads nor writes memory of `owner`, a batch. It
  /// may end for that.
  virtual void abandon(const void* owner) = 0;
  /// Asks the peer for a sign of life.
  virtual void ping() = 0;
  /// When it last showed a sign of life.
  virtual Clock::time_point heard() const = 0;
  virtual const std::string& peer_text() const = 0;
  virtual Way way() const = 0;

  // Written on the loop's thread, before the dispatcher knows the carrier.
  uint64_t agent = 0;  // the peer's id
};

/// When a peer counts as heard if this process was stopped for `lag` since it was heard.
inline Clock::time_point excused(Clock::time_point heard, Duration lag) {
  return std::min(heard + lag, Clock::now());
}

}  // namespace ringcoll::remote
