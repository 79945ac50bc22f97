// Names of hosts: lists of them as SLURM writes them, and their natural order.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ringcoll {

/// The hosts of "n[001-004,7],login", in that order, several brackets in a name too. Throws
/// Error(kInvalidArgument) with the reason if it is no such list, or one of more than
/// kMaxListedHosts.
std::vector<std::string> expand_hostlist(std::string_view list);
inline constexpr size_t kMaxListedHosts = 1 << 20;

/// `text` cut at each `separator` outside of brackets into at most `most` parts (0: any number);
/// the last takes the rest.
std::vector<std::string_view> split_outside_brackets(std::string_view text, char separator,
                                                     size_t most = 0);

/// Whether `a` comes before `b` where digits count as numbers: node7 before node66.
bool natural_less(std::string_view a, std::string_view b);

}  // namespace ringcoll
