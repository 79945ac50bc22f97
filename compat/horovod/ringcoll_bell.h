// A bell between the ranks of a job: who begins a cycle rings, and who sleeps hears it.
//
// Messages with tags on the communicator of process set 0, which has nothing else of that kind.
// They go along the edges of a fixed tree, from each rank to all of its neighbours but the one
// that it heard from, so that whoever rings first is heard by all after as many hops as the tree
// is deep twice, and a rank has a channel to log2(size) others at most.
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

/// What was heard: `rank` has begun the cycle of this number. Of this rank itself: see RingSelf().
struct RingcollToll {
  uint64_t cycle = 0;
  int32_t rank = 0;
};

/// For the background thread, but for RingSelf(). Functions that return an rc_status other than
/// RC_OK have found the communicator failed.
class RingcollBell {
 public:
  RingcollBell(const RingcollLibrary& library, rc_comm* comm);
  /// After the communicator, whose end ends what nobody has taken: else it would be waited for.
  ~RingcollBell();
  RingcollBell(const RingcollBell&) = delete;

  /// Tells all neighbours in the tree, but not `except` (-1: all).
  rc_status Ring(uint64_t cycle, int except);
  /// Ends a Hear() of this rank, in any thread, or the next one.
  rc_status RingSelf();
  /// Waits for the next toll; none if the time passed first.
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
  // What has not been taken yet; a deque, as the messages lie in it while it grows.
  std::deque<Sent> sent_;
};

}  // namespace common
}  // namespace horovod
#pragma GCC visibility pop
