// What each rank was told about the network, and the placements of hosts that follow from it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "net/wire.h"
#include "topology/placement.h"

namespace ringcoll {

struct Location;

/// What one rank was told; a part of its Location.
struct Hints {
  std::string file;     // RINGCOLL_TOPOLOGY
  std::string failure;  // why this rank cannot read the file
  std::string text;     // of the file; empty except on rank 0
  uint64_t digest = 0;  // of the text; 0: no file, or this rank cannot read it
  std::string slurm_address;
  std::string slurm_pattern;

  /// `file` may be empty. A file that cannot be read is noted in `failure`, not thrown.
  static Hints of(const std::string& file, bool first_rank);
  void encode(WireWriter* writer) const;
  static Hints decode(WireReader* reader);
};
inline constexpr size_t kMaxTopologyBytes = size_t{4} << 20;

/// The placement that SLURM_TOPOLOGY_ADDR gives, such as "s0.s1.node7" with the pattern
/// "switch.switch.node". Nothing if the pattern does not fit or the address has no switch. Where
/// several switches lead to the node, SLURM writes a list such as "s[0-1]", which counts as one
/// name.
std::optional<Placement> slurm_placement(const std::string& address, const std::string& pattern);

/// Gives the hosts of all ranks their placements: by the file that rank 0 has read, else by SLURM's
/// addresses. Pure: ranks with the same locations get the same placements, or the same error.
/// Locations that already have placements, from a parent communicator, keep them. Throws
/// Error(kInvalidArgument) that names file, line and host, or the ranks that disagree.
std::vector<Location> find_placements(std::vector<Location> locations);

}  // namespace ringcoll
