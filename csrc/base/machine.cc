#include "base/machine.h"

#include <unistd.h>

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

}  // namespace ringcoll
