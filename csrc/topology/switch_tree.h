// Switches as files list them, and the placements of hosts that follow. Private to topology/.
#pragma once

#include <fmt/core.h>

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "topology/placement.h"

namespace ringcoll {

/// A switch or block. It has either switches or hosts below it.
struct Switch {
  std::string name;
  std::vector<std::string> switches;  // below it; names
  std::vector<std::string> hosts;
  int line = 0;
};

/// Throws Error(kInvalidArgument) for a switch that is named twice, unknown or empty, has both
/// hosts and switches or two parents, or lies below itself; and for a host named twice.
Placements placements_of(const std::vector<Switch>& switches);

/// The same for blocks. `sizes` are SLURM's BlockSizes and may be empty: `sizes[k] / sizes[0]`
/// consecutive blocks are one group of level k. `line` is the line of the sizes, for errors.
Placements placements_of_blocks(std::vector<Switch> blocks, const std::vector<int>& sizes,
                                int line);

/// Error(kInvalidArgument, "line 12: …").
template <typename... Args>
Error at_line(int line, fmt::format_string<Args...> format, Args&&... args) {
  return Error(Code::kInvalidArgument,
               fmt::format("line {}: {}", line, fmt::format(format, std::forward<Args>(args)...)));
}

/// One block size. Throws Error(kInvalidArgument) that names the line.
int block_size_at(int line, std::string_view word);

/// expand_hostlist() with errors that name the line.
std::vector<std::string> hosts_at(int line, std::string_view list);

/// Parsers for the two kinds of files. parse_topology() decides which one reads a file.
Placements parse_slurm_conf(std::string_view text);
Placements parse_yaml(std::string_view text);

}  // namespace ringcoll
