#include "base/descriptors.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>

#include "base/error.h"
#include "base/log.h"

namespace ringcoll {

size_t allow_descriptors(size_t count) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  rlim_t wanted = std::min<rlim_t>(count, limit.rlim_max);
  if (wanted <= limit.rlim_cur) return limit.rlim_cur;
  rlimit raised{.rlim_cur = wanted, .rlim_max = limit.rlim_max};
  if (::setrlimit(RLIMIT_NOFILE, &raised) != 0) {
    log_debug("{}", errno_text("setrlimit(RLIMIT_NOFILE)", errno));
    return limit.rlim_cur;
  }
  return wanted;
}

}  // namespace ringcoll
