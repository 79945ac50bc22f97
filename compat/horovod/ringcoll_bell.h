// Notifications between the ranks of a job: a rank that begins a cycle notifies the ranks that
// sleep.
//
// They are messages with tags on the communicator of process set 0, which sends no other such
// messages. Each rank passes a notification on to all neighbours in a fixed tree but the one that
// it came from. So it reaches all ranks in at most twice as many hops as the tree is deep, and a
// rank has channels to about log2(size) others.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "ringcoll_library.h"

#pragma GCC visibility push(hidden)
namespace horovod {
namespace common {

/// A received notification: `rank` has begun the cycle of this number. If `rank` is this rank
/// itself, see RingSelf().
struct RingcollToll {
  uint64_t cycle = 0;
  int32_t rank = 0;
};

/// For the background thread, except RingSelf(). An rc_status other than RC_OK means that the
/// communicator has failed.
class RingcollBell {
 public:
  RingcollBell(const RingcollLibrary& library, rc_comm* comm);
  /// Must run after the communicator is destroyed, which ends sends that nobody received. Before
  /// that, the destructor would wait for them.
  ~RingcollBell();
  RingcollBell(const RingcollBell&) = delete;

  /// Notifies all neighbours in the tree except `except` (-1: all).
  rc_status Ring(uint64_t cycle, int except);
  /// Ends a Hear() of this rank in another thread, or the next one. Any thread.
  rc_status RingSelf();
  /// Waits for the next notification; `toll` is empty if `limit` passed first.
  rc_status Hear(std::chrono::duration<double> limit, std::optional<RingcollToll>* toll);

  int rank() const { return rank_; }

 private:
  struct Sent {
    uint64_t cycle;
    rc_request* request;
  };

  rc_status Tell(int peer, uint64_t cycle);

  const RingcollLibrary& library_;
  rc_comm* const comm_;
  const int rank_;
  std::vector<int> neighbours_;
  // Sends that are not complete. A deque, since messages must not move while it grows.
  std::deque<Sent> sent_;
};

}  // namespace common
}  // namespace horovod
#pragma GCC visibility pop
