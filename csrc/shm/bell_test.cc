#include "shm/bell.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <utility>

namespace ringcoll {
namespace {

bool rings(const Bell& bell, int limit_ms) {
  pollfd fd{bell.fd(), POLLIN, 0};
  return ::poll(&fd, 1, limit_ms) == 1;
}

TEST(Bell, IsRungUntilItIsSilenced) {
  Bell bell;
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
  pid_t owner = ::getpid();
  int fd = bell.fd();
  uint64_t inode = bell.inode();
  pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    BellRopes rope;
    rope.pull(owner, fd, inode);
    ::_exit(0);
  }
  EXPECT_TRUE(rings(bell, 20'000));
  ::waitpid(child, nullptr, 0);
}

// Nor does what has the descriptor now hear of it.
TEST(Bell, OfOneWhoHasEndedIsRungWithoutHarm) {
  BellRopes rope;
  int fd = -1;
  uint64_t inode = 0;
  {
    Bell bell;
    fd = bell.fd();
    inode = bell.inode();
    rope.pull(::getpid(), fd, inode);
    EXPECT_TRUE(rings(bell, 0));
  }
  for (int i = 0; i < 3; i++) rope.pull(::getpid(), fd, inode);  // no SIGPIPE
  Bell other;
  BellRopes late;
  late.pull(::getpid(), other.fd(), other.inode() + 1);
  late.pull(::getpid(), 1 << 20, other.inode());
  late.pull(::getpid(), other.fd(), 0);
  EXPECT_FALSE(rings(other, 0));
  late.pull(::getpid(), other.fd(), other.inode());
  EXPECT_TRUE(rings(other, 0));
}

// A rank whose groups sleep one after another in turn, and one with many.
TEST(BellRopes, RingAnyBellOfAProcess) {
  constexpr int kBells = 10;
  std::array<Bell, kBells> bells;
  BellRopes ropes;
  for (int turn = 0; turn < 3; turn++)
    for (const Bell& bell : bells) {
      ropes.pull(::getpid(), bell.fd(), bell.inode());
      for (const Bell& each : bells) EXPECT_EQ(rings(each, 0), &each == &bell);
      bell.silence();
    }
}

// Descriptors belong to sleeps: as many as there are at one time, whatever the number of those who
// might sleep.
TEST(Bells, AreAsManyAsAreTaken) {
  Bells bells;
  auto one = bells.take();
  const Bell* first = one.get();
  bells.give_back(std::move(one));
  one = bells.take();
  EXPECT_EQ(one.get(), first);
  auto other = bells.take();
  EXPECT_NE(other->fd(), one->fd()) << "both are in use";
  other->ring();
  EXPECT_FALSE(rings(*one, 0));
  bells.give_back(std::move(other));
  bells.give_back(std::move(one));
  EXPECT_EQ(bells.take().get(), first) << "the one that peers have open";
}

TEST(Bells, HaveNoPipeWhereThereAreNoDescriptors) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  rlimit none{.rlim_cur = 0, .rlim_max = limit.rlim_max};
  Bells bells;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  auto bell = bells.take();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(bell->fd(), -1);
  EXPECT_EQ(bell->inode(), 0u);
  bell->ring();
  bells.give_back(std::move(bell));
  EXPECT_GE(bells.take()->fd(), 0) << "there are some again";
}

}  // namespace
}  // namespace ringcoll
