#include "shm/bell.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

namespace ringcoll {
namespace {

bool rings(const Bell& bell, int limit_ms) {
  pollfd fd{bell.fd(), POLLIN, 0};
  return ::poll(&fd, 1, limit_ms) == 1;
}

TEST(Bell, IsRungUntilItIsSilenced) {
  Bell bell;
  bell.make();
  EXPECT_FALSE(rings(bell, 0));
  for (int i = 0; i < 100'000; i++) bell.ring();  // more than it holds
  EXPECT_TRUE(rings(bell, 0));
  bell.silence();
  EXPECT_FALSE(rings(bell, 0));
  bell.ring();
  EXPECT_TRUE(rings(bell, 0));
}

TEST(Bell, IsRungByAnotherProcess) {
  Bell bell;
  bell.make();
  pid_t owner = ::getpid();
  int fd = bell.fd();
  uint64_t inode = bell.inode();
  pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    BellRope rope;
    rope.pull(owner, fd, inode);
    ::_exit(0);
  }
  EXPECT_TRUE(rings(bell, 20'000));
  ::waitpid(child, nullptr, 0);
}

// Nor does what has the descriptor now hear of it.
TEST(Bell, OfOneWhoHasEndedIsRungWithoutHarm) {
  BellRope rope;
  int fd = -1;
  uint64_t inode = 0;
  {
    Bell bell;
    bell.make();
    fd = bell.fd();
    inode = bell.inode();
    rope.pull(::getpid(), fd, inode);
    EXPECT_TRUE(rings(bell, 0));
  }
  for (int i = 0; i < 3; i++) rope.pull(::getpid(), fd, inode);  // no SIGPIPE
  Bell other;
  other.make();
  BellRope late;
  late.pull(::getpid(), other.fd(), other.inode() + 1);
  late.pull(::getpid(), 1 << 20, other.inode());
  late.pull(::getpid(), other.fd(), 0);
  EXPECT_FALSE(rings(other, 0));
  late.pull(::getpid(), other.fd(), other.inode());
  EXPECT_TRUE(rings(other, 0));
}

}  // namespace
}  // namespace ringcoll
