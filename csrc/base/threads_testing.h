// A process that can make no more threads, as by a limit of its user.
#pragma once

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace ringcoll::testing {

/// Runs `body` in a child of another user, since root may have any number of threads. What fails
/// there fails this test.
template <typename Body>
void in_a_child_of_another_user(Body&& body) {
  constexpr uid_t kNobodyElse = 61234;
  pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (::setgid(kNobodyElse) != 0 || ::setuid(kNobodyElse) != 0) ::_exit(2);
    ::prctl(PR_SET_DUMPABLE, 1);  // its ranks open one another's descriptors
    body();
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "2 << 8: this needs root";
}

/// From now on this process cannot.
inline void forbid_threads() {
  rlimit none{0, 0};
  ASSERT_EQ(::setrlimit(RLIMIT_NPROC, &none), 0);
}

}  // namespace ringcoll::testing
