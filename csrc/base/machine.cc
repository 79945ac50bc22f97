#include "base/machine.h"

#include <unistd.h>

#include <algorithm>
#include <climits>
#include <fstream>

namespace ringcoll {

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = "?";
  gethostname(name, sizeof name);
  name[sizeof name - 1] = 0;
  return name;
}

std::string machine_id() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  return id.empty() ? host_name() : id;
}

std::string namespace_id(const std::string& kind) {
  char target[64];
  ssize_t length = ::readlink(("/proc/self/ns/" + kind).c_str(), target, sizeof target);
  return length > 0 ? std::string(target, static_cast<size_t>(length)) : "";
}

int64_t core_cache_bytes() { return std::max<int64_t>(0, ::sysconf(_SC_LEVEL2_CACHE_SIZE)); }

size_t page_bytes() { return static_cast<size_t>(::sysconf(_SC_PAGESIZE)); }

}  // namespace ringcoll
