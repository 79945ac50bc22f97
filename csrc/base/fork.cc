#include "base/fork.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <vector>

#include "base/error.h"

namespace ringcoll {
namespace {

struct Own {
  std::mutex mutex;
  std::vector<bool> descriptors;  // by number
  int stand_in = -1;
  std::atomic<int> forks = 0;
};

Own& own();

// Nothing here allocates: another thread of the parent may have held a lock of malloc.
void in_child() {
  Own& all = own();
  for (size_t fd = 0; fd < all.descriptors.size(); fd++)
    if (all.descriptors[fd]) ::dup3(all.stand_in, static_cast<int>(fd), O_CLOEXEC);
  all.descriptors.assign(all.descriptors.size(), false);
  all.forks++;
  all.mutex.unlock();
}

Own& own() {
  static Own* all = [] {
    auto made = std::make_unique<Own>();
    made->stand_in = ::eventfd(0, EFD_CLOEXEC);
    check(made->stand_in >= 0, Code::kTransport, "{}", errno_text("eventfd", errno));
    int error =
        ::pthread_atfork([] { own().mutex.lock(); }, [] { own().mutex.unlock(); }, in_child);
    check(error == 0, Code::kTransport, "{}", errno_text("pthread_atfork", error));
    return made.release();  // never freed: forks use it until the end
  }();
  return *all;
}

}  // namespace

int fork_number() { return own().forks.load(std::memory_order_relaxed); }

NoFork::NoFork() : lock_(own().mutex) {}

void NoFork::keep_from_children(int fd) {
  auto at = static_cast<size_t>(fd);
  if (own().descriptors.size() <= at) own().descriptors.resize(2 * at + 64);
  own().descriptors[at] = true;
}

void NoFork::forget(int fd) { own().descriptors[static_cast<size_t>(fd)] = false; }

}  // namespace ringcoll
