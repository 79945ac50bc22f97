// One send or receive of a message with a tag, as its caller asked for it.
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

/// The links of an object in one List.
template <typename T>
struct Hook {
  T* before = nullptr;
  T* after = nullptr;
};

/// An intrusive queue. It does not own its items, and can remove one from its middle.
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

/// The message that a receive has matched, also if it was too long for the receive.
struct Received {
  Rank source = kNobody;
  int32_t tag = 0;
  uint64_t bytes = 0;
};

/// One send or receive. The caller fills in the first part. It keeps the object in place and does
/// not change it until the transfer has ended (p2p/post.h). This layer uses the rest.
struct Transfer {
  /// A receive comes from `peer`, or from kAnySource, and takes `tag` or kAnyTag. A send goes to
  /// `peer` with `tag`.
  bool receives = false;
  Rank peer = kNobody;
  int32_t tag = 0;
  std::byte* data = nullptr;  // a send only reads it
  uint64_t bytes = 0;         // the length of a send; the capacity of a receive
  double timeout_s = 0;       // 0: that of the communicator
  /// Called when the outcome of a started transfer is known, with its error. Does not throw.
  std::function<void(const std::optional<Error>&)> done;

  // The outcome, once it has ended.
  std::optional<Error> error;
  Received received;

  /// "receive of at most 8 bytes from rank 3, tag 1".
  std::string describe() const;

  // Used to move it (courier.h).
  enum class Stage : uint8_t {
    kFresh,
    kPosted,    // a receive that has matched no message
    kOwn,       // a send to this rank itself that has matched no receive
    kOffered,   // a send that the peer has not matched, as far as this rank knows
    kUnderWay,  // the peer has matched it, or the channel has its bytes
    kOver,      // the outcome is known
  };
  Stage stage = Stage::kFresh;
  uint64_t order = 0;         // position among this rank's receives, from 1; 0: none yet
  uint64_t number = 0;        // of the announcement, or of the last message that reads `data`
  uint64_t loan = 0;          // number of the loan of `data` (MessageChannels::lend); 0: not lent
  uint64_t moved = 0;         // bytes of a long message sent or received so far, from its beginning
  uint64_t helped = 0;        // bytes sent or received from its end, while the receiver reads it
  uint64_t remote = 0;        // address of the message in the peer's process
  size_t way = 0;             // Courier::Way of a short send, Courier::Read of a long receive
  bool is_staged = false;     // a short send whose bytes were copied to the arena
  Clock::time_point began{};  // when a send that is timed began
  Duration took{};            // time spent on reading it
  Hook<Transfer> place;       // in the list of its stage

  // Used to wait for it (post.h).
  Hook<Transfer> among_all;
  uint64_t serial = 0;  // unique in the communicator
  std::optional<Clock::time_point> due;
  uint64_t moved_when_due = 0;  // bytes that had moved when `due` was set
  std::optional<LongWait> long_wait;
  bool started = false;    // by Post::start(), not by Post::run()
  bool ended = false;      // the outcome is known, and `done` has returned
  std::thread::id teller;  // the thread that is in `done`
};
using Transfers = List<Transfer, &Transfer::place>;

/// The transfer with this number; null if there is none.
inline Transfer* find(const Transfers& transfers, uint64_t number) {
  Transfer* found = transfers.front();
  while (found && found->number != number) found = Transfers::next(found);
  return found;
}

}  // namespace ringcoll
