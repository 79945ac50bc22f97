// Which schedule, how large the pieces of its pipeline are and how many of them are in flight: what
// is cheapest by the costs of the job's own links (schedule/fabric.h), unless RINGCOLL_ALGORITHM
// names a schedule. A pure function of what all ranks know alike, so that all choose the same.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "coll/call.h"
#include "schedule/fabric.h"
#include "schedule/schedule.h"

namespace ringcoll {

/// What the choice depends on besides the call.
struct Terrain {
  Fabric fabric;
  bool one_domain = false;          // all pairs by shared memory
  bool oversubscribed = false;      // more ranks than cores on some host
  int64_t segment_bytes = 0;        // RINGCOLL_SEGMENT_BYTES
  int64_t largest_piece_bytes = 0;  // that the arena allows
  int64_t slots = 1;                // pieces in flight at most
  std::string algorithm;            // RINGCOLL_ALGORITHM
};

struct Choice {
  const ScheduleRow* row = nullptr;
  int64_t stretch = 0;  // elements of each lane in a piece
  int64_t pieces = 0;
};

class Selector {
 public:
  explicit Selector(Terrain terrain) : terrain_(std::move(terrain)) {}

  const Terrain& terrain() const { return terrain_; }
  /// `longest_lane`: elements of the longest lane; `lanes`: lanes that share a piece's memory.
  Choice choose(const Call& call, int64_t longest_lane, size_t lanes);
  /// What a vector of `bytes` (as in docs/algorithms.md) is expected to take with a row, in pieces
  /// of the best size. Null if the row is not offered here, or nobody can work out its price.
  struct Estimate {
    double microseconds = 0;
    int64_t piece_bytes = 0;
  };
  std::optional<Estimate> estimate(const ScheduleRow& row, double bytes);

 private:
  const Profile* profile_of(const ScheduleRow& row);
  const ScheduleRow* cheapest(const Call& call, double bytes, int64_t* piece_bytes);

  Terrain terrain_;
  std::unordered_map<const ScheduleRow*, std::optional<Profile>> profiles_;
};

/// How many pieces in flight large calls are fastest with, if a rank's arena has `arena_bytes`:
/// more pieces hide more latency, and are smaller.
int64_t best_slots(Terrain terrain, int64_t arena_bytes);
/// The largest piece of an arena in so many slots.
int64_t largest_piece_bytes(int64_t arena_bytes, int64_t slots);

/// Throws Error(kInvalidArgument) for a RINGCOLL_ALGORITHM that names no schedule, with the names
/// there are.
void check_algorithm(const std::string& algorithm);

}  // namespace ringcoll
