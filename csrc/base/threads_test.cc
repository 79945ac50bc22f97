#include "base/threads.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include <string>

#include "base/error_testing.h"
#include "base/threads_testing.h"

namespace ringcoll {
namespace {

TEST(Threads, TakeNoSignals) {
  sigset_t blocked;
  sigemptyset(&blocked);
  pthread_t own = 0;
  start_thread("ringcoll-test", [&] {
    pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    own = pthread_self();
  }).join();
  EXPECT_NE(own, pthread_self());
  EXPECT_EQ(sigismember(&blocked, SIGINT), 1);
  pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  EXPECT_EQ(sigismember(&blocked, SIGINT), 0) << "of who started it";
}

TEST(Threads, OneThatCannotBeMadeNamesTheLimitAndTheRemedy) {
  testing::in_a_child_of_another_user([] {
    testing::forbid_threads();
    Error error = testing::error_of([] { start_thread("ringcoll-test", [] {}); });
    EXPECT_EQ(error.code(), Code::kTransport);
    for (const char* part : {"ringcoll-test", "ulimit -u", "which is 0", "pids.max"})
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    EXPECT_EQ(sigismember(&blocked, SIGINT), 0);
  });
}

}  // namespace
}  // namespace ringcoll
