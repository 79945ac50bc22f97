#include "base/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>

namespace ringcoll {
namespace {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));

const uint32_t* address_of(const std::atomic<uint32_t>& word) {
  return reinterpret_cast<const uint32_t*>(&word);
}

}  // namespace

void wait_while(const std::atomic<uint32_t>& word, uint32_t seen, Duration limit) {
  auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::clamp<Duration>(limit, Duration::zero(), std::chrono::hours(1)));
  timespec timeout{.tv_sec = static_cast<time_t>(left.count() / 1'000'000'000),
                   .tv_nsec = static_cast<long>(left.count() % 1'000'000'000)};
  ::syscall(SYS_futex, address_of(word), FUTEX_WAIT, seen, &timeout, nullptr, 0);
}

void wake_all(const std::atomic<uint32_t>& word) {
  ::syscall(SYS_futex, address_of(word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace ringcoll
