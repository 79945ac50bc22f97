// Where hosts are in the network, as a file or SLURM says. Pure.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace ringcoll {

/// The place of one host.
struct Placement {
  std::vector<std::string> groups;  // names from the top down, {"spine1", "leaf3"}
  int order = 0;                    // position in the source; equal numbers: sort by name
  std::string why;                  // where the source says so, such as "line 12"
};

/// By the name of the host.
using Placements = std::map<std::string, Placement, std::less<>>;

/// No real network has more levels of switches.
inline constexpr size_t kMaxLevels = 16;

/// The placements in a file: SLURM's topology.conf or topology.yaml, or JSON (YAML) of the form
/// {host: "spine.leaf"}. The format is recognized by the content. Throws Error(kInvalidArgument)
/// that begins with the line and names the host or switch.
Placements parse_topology(std::string_view text);

}  // namespace ringcoll
