// Which machine this process runs on, and in which namespaces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace ringcoll {

std::string host_name();
/// The boot id: equal for the processes of one running kernel, and nowhere else. Without /proc it
/// is the host's name.
std::string machine_id();
/// "net:[4026531840]" for "net": equal in one namespace, and different in the others of this
/// kernel. "" without /proc.
std::string namespace_id(const std::string& kind);
/// Bytes of the second-level cache of the core that asks; 0 if unknown.
int64_t core_cache_bytes();
size_t page_bytes();

}  // namespace ringcoll
