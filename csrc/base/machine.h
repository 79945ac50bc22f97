// Which machine this process runs on, and in which part of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace ringcoll {

std::string host_name();
/// Equal for the processes of one running kernel, and nowhere else: its boot id; without /proc the
/// host's name has to do.
std::string machine_id();
/// "net:[4026531840]" of "net": equal in one namespace and in no other of this kernel; "" without
/// /proc.
std::string namespace_id(const std::string& kind);
/// The second-level cache that a core has for itself, of the core that asks; 0 if it is not known.
int64_t core_cache_bytes();
size_t page_bytes();

}  // namespace ringcoll
