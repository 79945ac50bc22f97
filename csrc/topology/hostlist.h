// Lists of host names as SLURM writes them, and the natural order of names.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ringcoll {

/// The hosts of a list such as "n[001-004,7],login", in that order. A name may have several
/// brackets. Throws Error(kInvalidArgument) with the reason if `list` is malformed or has more than
/// kMaxListedHosts hosts.
std::vector<std::string> expand_hostlist(std::string_view list);
inline constexpr size_t kMaxListedHosts = 1 << 20;

/// Splits `text` at each `separator` outside of brackets into at most `most` parts (0: no limit).
/// The last part has the rest.
std::vector<std::string_view> split_outside_brackets(std::string_view text, char separator,
                                                     size_t most = 0);

/// Whether `a` sorts before `b` if digits count as numbers: node7 before node66.
bool natural_less(std::string_view a, std::string_view b);

}  // namespace ringcoll
