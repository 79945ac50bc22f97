#include "base/process.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "base/fd.h"

namespace ringcoll {

// A pidfd is readable once all threads of its process have ended; the number stays in use until
// somebody has waited for the process. A kernel or sandbox may lack pidfds; then kill() answers.
bool has_ended(int pid) {
  Fd process = Fd::made_by([&] { return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)); });
  if (!process) return errno == ESRCH || (::kill(pid, 0) != 0 && errno == ESRCH);
  pollfd end{process.get(), POLLIN, 0};
  return ::poll(&end, 1, 0) > 0;
}

}  // namespace ringcoll
