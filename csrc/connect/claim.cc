#include "connect/claim.h"

#include <fmt/core.h>
#include <unistd.h>

#include <climits>

#include "connect/connector.h"

namespace ringcoll {

std::string this_process() {
  char host[HOST_NAME_MAX + 1] = "?";
  gethostname(host, sizeof host);
  host[sizeof host - 1] = 0;
  return fmt::format("pid {} on {}", getpid(), host);
}

std::string fresh_token() { return random_secret().substr(0, 32); }

}  // namespace ringcoll
