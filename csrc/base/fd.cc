#include "base/fd.h"

#include <unistd.h>

#include <cerrno>

#include "base/fork.h"

namespace ringcoll {

Fd::Fd(int fd) : fd_(fd) {
  if (fd < 0) return;
  int error = errno;
  NoFork().keep_from_children(fd);
  errno = error;
}

Fd Fd::made(int (*call)(void*), void* state) {
  NoFork no_fork;
  Fd fd;
  fd.fd_ = call(state);
  int error = errno;
  if (fd) no_fork.keep_from_children(fd.fd_);
  errno = error;
  return fd;
}

void Fd::reset() {
  if (fd_ < 0) return;
  NoFork no_fork;
  no_fork.forget(fd_);
  ::close(std::exchange(fd_, -1));
}

}  // namespace ringcoll
