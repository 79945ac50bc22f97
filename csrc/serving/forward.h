// The line from a server to another one that has backups of its shards.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "serving/line.h"
#include "serving/memory.h"
#include "serving/request.h"
#include "serving/wire.h"

namespace ringcoll::serving {

struct Reply {
  ReplyHead head;
  std::span<const std::byte> body;
};

/// What is sent, and what has to be done when the other server has answered.
struct Forwarded {
  std::shared_ptr<SharedBuffer> buffer;  // that the other server reads; null: all is in the slot
  std::function<void(const Reply&)> answered;
};

/// One thread at a time.
class ForwardLine {
 public:
  explicit ForwardLine(remote::Agent& agent) : line_(agent) {}

  LineEnd& line() { return line_; }
  /// Sends the request, or keeps a copy of it until a slot is free. What it consists of is borrowed
  /// during the call, but for `what`.
  void send(Outgoing request, Forwarded what);
  /// Takes answers, and sends what waits for slots. Returns whether there was anything to do.
  bool progress();

 private:
  struct Kept {
    std::vector<std::byte> message;
    Forwarded what;
  };
  bool may_send() const;

  LineEnd line_;
  uint64_t next_ = 1;
  uint64_t answered_ = 0;             // all up to this one
  std::deque<Forwarded> unanswered_;  // from answered_ + 1 on
  std::deque<Kept> kept_;
};

}  // namespace ringcoll::serving
