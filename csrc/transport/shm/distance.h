// How far two ranks are from each other: the time that a cache line takes there and back.
//
// Each end has a line that it writes and the other reads. The lower rank **leads**: it counts its
// line up, and the other echoes what it sees there. An exchange takes both lines there and back:
// whoever writes takes its line from the reader, who then fetches it. Half of an exchange is a
// round trip of a line, hence. The leader says what it found in its line, and both ends read that.
//
// Nobody waits for a peer that may not come: all that an end does alone is to spin for kPatience.
// So both come when they know that the other does: where they have just exchanged messages, or
// between two calls after each has said in its line that it wants to (look()). Who was alone even
// so says no more that it wants to, and rests, the longer the more often that happens.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.h"
#include "transport/shm/layout.h"

namespace ringcoll::shm {

/// One end. One thread at a time but for distance().
class DistanceMeter {
 public:
  struct Ends {
    DistanceLine& mine;
    const DistanceLine& theirs;
    uint64_t my_base = 0;
    uint64_t their_base = 0;
    bool leads = false;  // one of the two
  };
  /// Begins with wanting to know.
  explicit DistanceMeter(const Ends& ends);

  /// As Endpoint's, `now` being the time.
  Distance distance(Clock::time_point now) const;
  void take(Clock::time_point now);
  void look(Clock::time_point now, Duration old);
  /// Whether look() would find what it found the last time, as far as is seen without a clock,
  /// which takes longer than all the rest: at most kQuiet times in a row.
  bool is_quiet();
  /// How often it has spun for the peer.
  uint64_t tries() const { return tries_; }

  /// How long an end spins in vain: longer than it takes to come from a message that both have
  /// received, and nothing beside what else it takes them to be apart.
  static constexpr Duration kPatience = std::chrono::microseconds(5);
  /// How long all of it takes at most. Cores that are so far apart that not all trips fit in have
  /// fewer.
  static constexpr Duration kLongest = std::chrono::microseconds(50);
  /// The least of the batches counts, for an interruption makes trips longer and nothing shorter.
  static constexpr int kBatches = 4, kTripsOfABatch = 8;
  /// From one try to the next at least. A try takes a thousandth of it.
  static constexpr Duration kLeastRest = std::chrono::milliseconds(10);
  static constexpr Duration kMostRest = std::chrono::seconds(1);
  static constexpr int kQuiet = 15;

 private:
  bool open() const;
  void tell(bool wants);
  bool meet();
  bool lead(Clock::time_point end);
  bool follow(Clock::time_point end);
  bool make_trip(Clock::time_point end);
  void announce(Duration round_trip);

  const Ends ends_;
  uint64_t number_ = 0;  // last written to its trip, by the leader; last seen there, by the other
  uint64_t tries_ = 0;
  bool wants_ = true;       // as it has told
  int quiet_ = 0;           // times in a row
  uint32_t peer_told_ = 0;  // when this end last looked
  Duration rest_ = kLeastRest;
  Clock::time_point rested_at_{};
};

}  // namespace ringcoll::shm
