#include "shm/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace ringcoll {
namespace {

// Not FUTEX_PRIVATE_FLAG: the other side is another process. Failures need no answer here: EAGAIN
// (the word has changed), EINTR and ETIMEDOUT all mean "look again", which every caller does.
long futex(const FutexWord& word, int operation, uint32_t value, const timespec* timeout) {
  return ::syscall(SYS_futex, &word, operation, value, timeout, nullptr, 0);
}

}  // namespace

void futex_wait(const FutexWord& word, uint32_t expected, Duration limit) {
  if (limit <= Duration::zero()) return;
  auto whole = std::chrono::duration_cast<std::chrono::seconds>(limit);
  auto rest = std::chrono::duration_cast<std::chrono::nanoseconds>(limit - whole);
  timespec timeout{static_cast<time_t>(whole.count()), static_cast<long>(rest.count())};
  futex(word, FUTEX_WAIT, expected, &timeout);
}

void futex_wake(const FutexWord& word) { futex(word, FUTEX_WAKE, INT_MAX, nullptr); }

}  // namespace ringcoll
