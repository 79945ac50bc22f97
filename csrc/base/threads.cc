#include "base/threads.h"

#include <fmt/core.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace ringcoll {
namespace {

/// What to do if the kernel refuses a thread. It says EAGAIN for a user's limit and for a
/// container's.
std::string remedy() {
  rlimit limit{};
  std::string user = "the limit of processes and threads of this user (ulimit -u)";
  if (::getrlimit(RLIMIT_NPROC, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    user += fmt::format(", which is {}", limit.rlim_cur);
  return "raise " + user + ", or that of the container or job (pids.max of its cgroup)";
}

}  // namespace

std::thread start_thread(const char* name, std::function<void()> body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // the new thread inherits it
  try {
    std::thread thread(std::move(body));
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pthread_setname_np(thread.native_handle(), name);
    return thread;
  } catch (const std::system_error& refused) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    std::string why = refused.code() == std::error_code(EAGAIN, std::generic_category())
                          ? remedy()
                          : std::string("free some memory");
    throw Error(Code::kTransport, fmt::format("cannot start the thread {}: {}; {}", name,
                                              refused.code().message(), why));
  }
}

}  // namespace ringcoll
