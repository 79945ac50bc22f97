// Which schedule, and how large the pieces of its pipeline are: by cost, unless RINGCOLL_ALGORITHM
// names one. A pure function of what all ranks know alike, so that all choose the same.
#pragma once

#include <cstdint>
#include <string>

#include "coll/call.h"
#include "schedule/schedule.h"

namespace ringcoll {

/// What the choice depends on besides the call.
struct Terrain {
  Rank size = 1;
  bool one_domain = false;          // all pairs by shared memory
  bool oversubscribed = false;      // more ranks than cores on some host
  int64_t segment_bytes = 0;        // RINGCOLL_SEGMENT_BYTES
  int64_t largest_piece_bytes = 0;  // that the arena allows
  std::string algorithm;            // RINGCOLL_ALGORITHM
};

struct Choice {
  const ScheduleRow* row = nullptr;
  int64_t stretch = 0;  // elements of each lane in a piece
  int64_t pieces = 0;
};

/// `longest_lane`: elements of the longest lane; `lanes`: lanes that share a piece's memory.
Choice choose(const Call& call, const Terrain& terrain, int64_t longest_lane, size_t lanes);

/// Throws Error(kInvalidArgument) for a RINGCOLL_ALGORITHM that names no schedule, with the names
/// there are.
void check_algorithm(const std::string& algorithm);

}  // namespace ringcoll
