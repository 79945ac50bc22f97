#include "base/process.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "base/fd.h"

namespace ringcoll {

// A descriptor of a process can be read when all of its threads have ended; its number alone stays
// in use until it was waited for. A kernel or sandbox may have no such descriptors.
bool has_ended(int pid) {
  Fd process = Fd::made_by([&] { return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)); });
  if (!process) return errno == ESRCH || (::kill(pid, 0) != 0 && errno == ESRCH);
  pollfd end{process.get(), POLLIN, 0};
  return ::poll(&end, 1, 0) > 0;
}

}  // namespace ringcoll
