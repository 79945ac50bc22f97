// A message as the one who sends or receives it has asked for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/long_wait.h"
#include "base/types.h"

namespace ringcoll {

inline constexpr Rank kAnySource = RC_ANY_SOURCE;
inline constexpr int32_t kAnyTag = RC_ANY_TAG;

/// Where an object stands in a List.
template <typename T>
struct Hook {
  T* before = nullptr;
  T* after = nullptr;
};

/// A queue of objects that belong to others, which can be taken out of its middle.
template <typename T, Hook<T> T::* hook>
class List {
 public:
  bool empty() const { return !first_; }
  T* front() const { return first_; }
  T* back() const { return last_; }
  static T* next(const T* item) { return (item->*hook).after; }
  void push(T* item) {
    (item->*hook) = {last_, nullptr};
    (last_ ? (last_->*hook).after : first_) = item;
    last_ = item;
  }
  void remove(T* item) {
    Hook<T>& at = item->*hook;
    (at.before ? (at.before->*hook).after : first_) = at.after;
    (at.after ? (at.after->*hook).before : last_) = at.before;
    at = {};
  }
  T* pop() {
    T* item = first_;
    if (item) remove(item);
    return item;
  }

 private:
  T* first_ = nullptr;
  T* last_ = nullptr;
};

/// Of a message that was received, or was too long to be.
struct Received {
  Rank source = kNobody;
  int32_t tag = 0;
  uint64_t bytes = 0;
};

/// One send or receive. Whoever asks fills in the first part and keeps it, where it is and as it
/// is, until it has ended (p2p/post.h); the rest is of this layer.
struct Transfer {
  /// Of a send (destination, tag) or a receive (source or kAnySource, tag or kAnyTag).
  bool receives = false;
  Rank peer = kNobody;
  int32_t tag = 0;
  std::byte* data = nullptr;  // of a send it is only read
  uint64_t bytes = 0;         // of a receive: room for so many
  double timeout_s = 0;       // 0: as of the communicator
  /// Called when it has ended, with its error; does not throw.
  std::function<void(const std::optional<Error>&)> done;

  // The outcome, once it has ended.
  std::optional<Error> error;
  Received received;

  /// "receive of at most 8 bytes from rank 3, tag 1".
  std::string describe() const;

  // Moving it (courier.h).
  enum class Stage : uint8_t {
    kFresh,
    kPosted,    // a receive that no message has matched
    kOwn,       // a send to this rank itself that no receive has matched
    kOffered,   // a send that no receive of the peer has matched, as far as is known here
    kUnderWay,  // a peer takes part in it
    kOver,      // the outcome is known
  };
  Stage stage = Stage::kFresh;
  uint64_t order = 0;   // among the receives that were posted; 0: it was not
  uint64_t number = 0;  // of the announcement, or of the last message that reads `data`
  uint64_t loan = 0;    // the number of `data`'s (MessageChannels::lend); 0: it is not lent
  uint64_t moved = 0;   // bytes of a long message that were sent, or have come, from its beginning
  uint64_t helped = 0;  // bytes that were sent, or have come, from its end, while it was read
  uint64_t remote = 0;  // where the peer has it
  size_t way = 0;       // of those that take turns to be timed
  bool is_staged = false;     // a short send, and its bytes have been copied to be sent
  Clock::time_point began{};  // a send
  Duration took{};            // to read it
  Hook<Transfer> place;       // in the list of its stage

  // Waiting for it (post.h).
  Hook<Transfer> among_all;
  uint64_t serial = 0;  // no other of the communicator has it
  std::optional<Clock::time_point> due;
  uint64_t moved_when_due = 0;  // bytes that had moved when `due` was set
  std::optional<LongWait> long_wait;
  bool started = false;    // and not waited for from the beginning
  bool ended = false;      // and `done` has returned
  std::thread::id teller;  // who is in `done`
};
using Transfers = List<Transfer, &Transfer::place>;

/// Of those the one with this number; null: there is none.
inline Transfer* find(const Transfers& transfers, uint64_t number) {
  Transfer* found = transfers.front();
  while (found && found->number != number) found = Transfers::next(found);
  return found;
}

}  // namespace ringcoll
