// Which schedule, how large the pieces of its pipeline are and how many of them are in flight: what
// is cheapest by the costs of the job's own links (schedule/fabric.h), unless RINGCOLL_ALGORITHM
// names a schedule. A pure function of what all ranks know alike, so that all choose the same.
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

/// Pieces of one call that are in flight at most, of `slots`.
constexpr int64_t pieces_in_flight(int64_t slots) {
  return std::min<int64_t>(slots, kLeastCredits);
}

/// What the choice depends on besides the call.
struct Terrain {
  Fabric fabric;
  std::vector<Rank> positions;   // in the ring, by rank; empty: each rank is at its own number
  bool one_domain = false;       // all pairs by shared memory
  bool oversubscribed = false;   // more ranks than cores on some host
  int64_t core_cache_bytes = 0;  // second-level, of the core that has the least; 0: unknown
  int64_t copied_bytes = 0;      // of a message that links of a host copy when it is sent; 0: none
  int64_t segment_bytes = 0;     // RINGCOLL_SEGMENT_BYTES
  int64_t arena_bytes = 0;       // RINGCOLL_ARENA_BYTES: the slots share it
  int64_t slots = 0;             // RINGCOLL_SLOTS: pieces in flight at most; 0: by price
  std::string algorithm;         // RINGCOLL_ALGORITHM

  /// Ranks read each other's memory, and each has a core, and so caches, of its own.
  bool one_domain_of_own_cores() const { return one_domain && !oversubscribed; }
};

/// The schedule of a call, and how it is cut into pieces.
struct Choice {
  const ScheduleRow* row = nullptr;
  int64_t stretch = 0;  // elements of each strip in a piece
  int64_t pieces = 0;
  bool one_by_one = false;  // a piece begins when the one before has ended; true of one alone
};

class Selector {
 public:
  /// Throws Error(kInvalidArgument) if the arena is too small for the slots: one element of each
  /// strip of any call has to fit into a bank.
  explicit Selector(Terrain terrain);

  const Terrain& terrain() const { return terrain_; }
  /// Pieces in flight at most.
  int64_t slots() const { return slots_; }
  /// Memory of a slot's bank: room for a piece, whichever its strips.
  int64_t bank_bytes() const { return 2 * largest_piece_bytes_; }
  /// `longest_strip`: elements of the longest strip; `strips`: strips that share a piece's memory.
  Choice choose(const Call& call, int64_t longest_strip, size_t strips);
  /// What a vector of `bytes` (as in docs/algorithms.md) is expected to take with a row, in pieces
  /// of the best size. Null if the row is not offered here, or has no closed form and more steps
  /// than are counted.
  struct Estimate {
    double microseconds = 0;
    int64_t piece_bytes = 0;
  };
  std::optional<Estimate> estimate(const ScheduleRow& row, double bytes);

 private:
  /// Of a row.
  struct Price {
    Profile profile;
    bool one_by_one = false;  // as in Choice, of several pieces
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

/// The schedule that RINGCOLL_ALGORITHM names for a collective, if it names one.
std::optional<std::string> named(const std::string& algorithm, Collective collective);
/// Throws Error(kInvalidArgument) for a RINGCOLL_ALGORITHM that names no schedule, with the names
/// there are.
void check_algorithm(const std::string& algorithm);

}  // namespace ringcoll
