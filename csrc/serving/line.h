// One end of a line between a client and a server: slots that the other end writes, one-sidedly and
// with a notice, and slots of which this one writes the content to the other end.
//
// Messages are numbered from 1 on, and lie in the slots in turn. Whoever uses a line sees to it
// that a slot is not written before its last message has been answered.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "remote/agent.h"
#include "serving/memory.h"
#include "serving/wire.h"

namespace ringcoll::serving {

/// One thread at a time.
class LineEnd {
 public:
  /// `agent` outlives it.
  explicit LineEnd(remote::Agent& agent);
  ~LineEnd();
  LineEnd(const LineEnd&) = delete;
  LineEnd& operator=(const LineEnd&) = delete;

  /// Tells the other end where the slots are.
  std::string handle() const { return incoming_.handle(); }
  /// Takes what the other end's handle() has said. Throws Error(kInvalidArgument).
  void connect(std::string_view handle);
  bool is_connected() const { return peer_ != nullptr; }

  /// Where this end prepares a message. Precondition: may_write().
  std::byte* outgoing(uint64_t number) { return outgoing_.data() + place_of(number); }
  /// False while the bytes of the last message in its slot are under way.
  bool may_write(uint64_t number) const;
  /// Sends the message that was prepared. That it fails is told by failure().
  void send(uint64_t number, size_t bytes);

  /// Wakes the other end, without a message. Numbers of wakes ascend.
  void wake(uint64_t number);

  /// Takes notices. Returns whether there were any.
  bool collect();
  bool has(uint64_t number) const { return arrived_[number % kSlots] == number; }
  const std::byte* incoming(uint64_t number) const { return incoming_.data() + place_of(number); }
  std::byte* incoming(uint64_t number) { return incoming_.data() + place_of(number); }

  /// The number of the last wake.
  uint64_t woken() const { return woken_; }

  /// Why messages can't be sent any more; nothing as long as they can.
  std::optional<Error> failure() const;

 private:
  struct Failure {
    std::mutex mutex;
    std::optional<Error> error;
  };
  // In a notice: it is a wake, and no message.
  static constexpr uint64_t kWake = uint64_t{1} << 63;
  static size_t place_of(uint64_t number) { return number % kSlots * kSlotBytes; }

  std::shared_ptr<remote::Batch> begin(remote::Copy copy);

  remote::Agent& agent_;
  SharedBuffer incoming_;
  SharedBuffer outgoing_;
  std::shared_ptr<const remote::RegionHandle> peer_;
  std::array<uint64_t, kSlots> arrived_{};
  uint64_t woken_ = 0;
  std::array<std::shared_ptr<remote::Batch>, kSlots> sent_;
  const std::shared_ptr<Failure> failure_ = std::make_shared<Failure>();
};

}  // namespace ringcoll::serving
