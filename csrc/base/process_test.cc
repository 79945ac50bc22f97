#include "base/process.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace ringcoll {
namespace {

TEST(Process, HasEndedWhenItWasKilledAndNotBefore) {
  EXPECT_FALSE(has_ended(getpid()));
  pid_t child = fork();
  if (child == 0)
    for (;;) pause();
  EXPECT_FALSE(has_ended(child));
  kill(child, SIGSTOP);
  EXPECT_FALSE(has_ended(child));
  kill(child, SIGKILL);
  siginfo_t how{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &how, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(has_ended(child)) << "though nobody has waited for it";
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(has_ended(child));
}

}  // namespace
}  // namespace ringcoll
