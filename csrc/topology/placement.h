// Where hosts stand in the network, as some source tells it. Pure.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace ringcoll {

/// Of one host.
struct Placement {
  std::vector<std::string> groups;  // from the top down, {"spine1", "leaf3"}
  int order = 0;                    // among the hosts of the source; equal: by name
  std::string why;                  // "line 12"
};

/// By the host's name.
using Placements = std::map<std::string, Placement, std::less<>>;

/// More levels of switches than any network has.
inline constexpr size_t kMaxLevels = 16;

/// The placements that a file gives: SLURM's topology.conf or topology.yaml, or JSON (YAML) of the
/// form {host: "spine.leaf"}; told by what is in it. Throws Error(kInvalidArgument) that begins
/// with the line and names the host or switch.
Placements parse_topology(std::string_view text);

}  // namespace ringcoll
