// Chooses the schedule of a call, the size of its pieces, and how many are in flight. The choice is
// the cheapest by the costs of the job's links (schedule/fabric.h), unless RINGCOLL_ALGORITHM names
// a schedule. It is a pure function of what all ranks know alike, so all ranks choose the same.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "coll/call.h"
#include "schedule/fabric.h"
#include "schedule/schedule.h"
#include "transport/transport.h"

namespace ringcoll {

/// How many pieces of one call are in flight at most, if there are `slots`.
constexpr int64_t pieces_in_flight(int64_t slots) {
  return std::min<int64_t>(slots, kLeastCredits);
}

/// What the choice depends on besides the call.
struct Terrain {
  Fabric fabric;
  std::vector<Rank> positions;   // in the ring, by rank; empty: a rank's position is its number
  bool one_domain = false;       // all pairs talk through shared memory
  int64_t core_cache_bytes = 0;  // the smallest second-level cache of a core; 0: unknown
  int64_t copied_bytes = 0;      // the longest message that links of a host copy; 0: none
  int64_t segment_bytes = 0;     // RINGCOLL_SEGMENT_BYTES
  int64_t arena_bytes = 0;       // RINGCOLL_ARENA_BYTES: the slots share it
  int64_t slots = 0;             // RINGCOLL_SLOTS: pieces in flight at most; 0: the cheapest
  std::string algorithm;         // RINGCOLL_ALGORITHM

  /// True if ranks read one another's memory and each has a core, and so caches, of its own.
  bool one_domain_of_own_cores() const { return one_domain && !fabric.crowded; }
};

/// The schedule of a call, and how it is cut into pieces.
struct Choice {
  const ScheduleRow* row = nullptr;
  int64_t stretch = 0;  // elements of each strip in a piece
  int64_t pieces = 0;
};

class Selector {
 public:
  /// Throws Error(kInvalidArgument) if the arena is too small for the slots: one element of each
  /// strip must fit into a bank, for every call.
  explicit Selector(Terrain terrain);

  const Terrain& terrain() const { return terrain_; }
  /// How many pieces are in flight at most, of all calls together.
  int64_t slots() const { return slots_; }
  /// Bytes of a slot's bank: room for a piece, however its strips are cut.
  int64_t bank_bytes() const { return 2 * largest_piece_bytes_; }
  /// Chooses for a call. `longest_strip`: elements of its longest strip. `strips`: the number of
  /// strips, which share a piece's memory.
  Choice choose(const Call& call, int64_t longest_strip, size_t strips);
  /// The expected time of a row for a vector of `bytes` (as in docs/algorithms.md), in pieces of
  /// the best size. None if the row is not offered here, or if it has no closed form and more steps
  /// than are counted.
  struct Estimate {
    double microseconds = 0;
    int64_t piece_bytes = 0;
  };
  std::optional<Estimate> estimate(const ScheduleRow& row, double bytes);

 private:
  /// The prices of a row. They differ where ranks share cores, since only a piece that is alone
  /// sends early (coll/run.h).
  struct Price {
    Profile alone;    // of a call that is one piece
    Profile several;  // of a call in several pieces
  };
  const Price* price_of(const ScheduleRow& row);
  std::optional<Price> work_out(const ScheduleRow& row) const;
  const ScheduleRow* row_for(const Call& call, double bytes, int64_t* piece_bytes);
  const ScheduleRow* cheapest(const Call& call, double bytes, int64_t* piece_bytes);
  bool copies_all(Collective collective) const;
  int64_t domain_piece_bytes(Collective collective, const Profile* profile) const;
  std::vector<int64_t> piece_sizes(Collective collective, const Profile* profile) const;
  void set_slots(int64_t slots);
  int64_t best_slots();

  Terrain terrain_;
  int64_t slots_ = 0;
  int64_t largest_piece_bytes_ = 0;
  std::unordered_map<const ScheduleRow*, std::optional<Price>> prices_;
};

/// The schedule that an `algorithm` (RINGCOLL_ALGORITHM) names for a collective, if it names one.
std::optional<std::string> named(const std::string& algorithm, Collective collective);
/// Throws Error(kInvalidArgument) if `algorithm` names no schedule. The text lists the names.
void check_algorithm(const std::string& algorithm);

}  // namespace ringcoll
