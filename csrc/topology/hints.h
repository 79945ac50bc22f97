// What a rank was told of the network, and what all make of what each was told.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "net/wire.h"
#include "topology/placement.h"

namespace ringcoll {

struct Location;

/// What one rank was told; part of its Location.
struct Hints {
  std::string file;     // RINGCOLL_TOPOLOGY
  std::string failure;  // why it cannot be read here
  std::string text;     // of the file; only rank 0 sends it
  uint64_t digest = 0;  // of the text; 0: it cannot be read here
  std::string slurm_address;
  std::string slurm_pattern;

  /// `file` may be "". Never throws for what it finds.
  static Hints of(const std::string& file, bool first_rank);
  void encode(WireWriter* writer) const;
  static Hints decode(WireReader* reader);
};
inline constexpr size_t kMaxTopologyBytes = size_t{4} << 20;

/// The placement of SLURM_TOPOLOGY_ADDR "s0.s1.node7" by its pattern "switch.switch.node"; nothing
/// if the pattern does not fit or there is no switch in it. A switch may be a list, "s[0-1]", where
/// several lead to the node: that is one name.
std::optional<Placement> slurm_placement(const std::string& address, const std::string& pattern);

/// Gives the hosts of all ranks their placements, by the file that rank 0 has read, else by SLURM's
/// addresses. Pure: ranks that have the same locations get the same placements, or the same error.
/// Locations that already have placements (of a communicator that this one is a part of) keep them.
/// Throws Error(kInvalidArgument) that names file, line and host, or the ranks that disagree.
std::vector<Location> find_placements(std::vector<Location> locations);

}  // namespace ringcoll
