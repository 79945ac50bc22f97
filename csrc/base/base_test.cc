#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <thread>

#include "base/clock.h"
#include "base/descriptors.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/fork.h"
#include "base/machine.h"
#include "base/types.h"

namespace ringcoll {
namespace {

TEST(Deadline, ForEverIsNotInThePast) {
  for (double s : {1e10, 1e300, std::numeric_limits<double>::infinity()}) {
    EXPECT_FALSE(Deadline(seconds(s)).passed()) << s;
    EXPECT_GT(to_seconds(Deadline(seconds(s) + seconds(2)).left()), 1e9) << s;
    EXPECT_TRUE(Deadline(seconds(-s)).passed()) << s;
  }
}

TEST(Error, KeepsCodeAndRankWhenContextIsAdded) {
  Error error = Error(Code::kPeerLost, "gone", 3).within("allreduce #41 (4 MiB)");
  EXPECT_EQ(error.code(), Code::kPeerLost);
  EXPECT_EQ(error.rank(), 3);
  EXPECT_STREQ(error.what(), "allreduce #41 (4 MiB): gone");
  EXPECT_THROW(check(false, Code::kTimeout, "{}", 1), Error);
}

TEST(Types, NamesAndSizes) {
  EXPECT_STREQ(name_of(RC_BFLOAT16), "bfloat16");
  EXPECT_EQ(size_of(RC_FLOAT64), 8u);
  EXPECT_STREQ(name_of(static_cast<DataType>(99)), "?");
  EXPECT_TRUE(overlap({0, 4}, {3, 1}));
  EXPECT_FALSE(overlap({0, 4}, {4, 1}));
  EXPECT_FALSE(overlap({0, 4}, {2, 0}));
}

TEST(SmallFile, IsReadWhole) {
  auto path = std::filesystem::temp_directory_path() / fmt::format("ringcoll-file-{}", ::getpid());
  const std::string content("a\n\0b", 4);
  std::ofstream(path, std::ios::binary) << content;
  std::string failure;
  EXPECT_EQ(read_small_file(path, 4, &failure), content);
  EXPECT_EQ(read_small_file(path, 3, &failure), std::nullopt);
  EXPECT_EQ(failure, "it has 4 bytes; at most 3 are read");
  std::filesystem::remove(path);
  EXPECT_EQ(read_small_file(path, 4, &failure), std::nullopt);
  EXPECT_EQ(failure, "No such file or directory");
  for (const char* other : {"/tmp", "/dev/zero"}) {
    EXPECT_EQ(read_small_file(other, 4, &failure), std::nullopt);
    EXPECT_EQ(failure, "it is no regular file") << other;
  }
}

TEST(Machine, IsNamedAlikeEachTime) {
  EXPECT_FALSE(host_name().empty());
  EXPECT_FALSE(machine_id().empty());
  EXPECT_EQ(machine_id(), machine_id());
  EXPECT_TRUE(namespace_id("net").starts_with("net:[")) << namespace_id("net");
  EXPECT_EQ(namespace_id("nonesuch"), "");
}

/// Runs `body` in a child of fork(2), which ends with what it returns.
template <typename Body>
int status_of_child(Body body) {
  pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Whoever holds the other end hears that the parent has closed it, or died, while the child lives.
TEST(Fork, LeavesNoDescriptorOpenInTheChild) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  Fd ours(ends[0]), theirs(ends[1]);
  pid_t child = ::fork();
  if (child == 0) {
    ::alarm(10);
    ::_exit(::pause());
  }
  ours.reset();
  pollfd entry{theirs.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&entry, 1, 5000), 1) << "the child holds it";
  char byte;
  EXPECT_EQ(::read(theirs.get(), &byte, 1), 0);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

// Or the child would close a file of its own when the owner's destructor runs there.
TEST(Fork, KeepsTheNumberTakenInTheChild) {
  Fd fd = Fd::made_by([] { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); });
  ASSERT_TRUE(fd);
  EXPECT_EQ(status_of_child([&] {
              if (::fcntl(fd.get(), F_GETFD) != FD_CLOEXEC) return 1;
              int other = ::open("/dev/null", O_RDONLY);
              if (other == fd.get()) return 2;
              fd.reset();
              return ::fcntl(other, F_GETFD) == 0 ? 0 : 3;
            }),
            0);
  EXPECT_EQ(::fcntl(fd.get(), F_GETFD), FD_CLOEXEC) << "the parent's is as it was";
}

TEST(Fork, IsCountedInTheChildAlone) {
  int before = fork_number();
  EXPECT_EQ(status_of_child([&] {
              return fork_number() == before + 1 &&
                             status_of_child([&] { return fork_number() - before; }) == 2
                         ? 0
                         : 1;
            }),
            0);
  EXPECT_EQ(fork_number(), before);
}

// The child sees no socket, whenever a thread of the parent was at making or closing one.
TEST(Fork, MayComeAtAnyTime) {
  std::atomic<bool> done = false;
  std::thread maker([&] {
    while (!done) Fd::made_by([] { return ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0); });
  });
  auto sockets = [] {
    int found = 0;
    for (int fd = 0; fd < 256; fd++) {
      struct stat about{};
      found += ::fstat(fd, &about) == 0 && S_ISSOCK(about.st_mode);
    }
    return found;
  };
  int before = sockets();  // those of whoever started this test, and perhaps the maker's
  for (int i = 0; i < 200; i++) EXPECT_LE(status_of_child(sockets), before) << i;
  done = true;
  maker.join();
}

TEST(Descriptor, KeepsTheErrorOfTheCallThatMadeNone) {
  Fd fd = Fd::made_by([] { return ::open("/nonesuch", O_RDONLY); });
  EXPECT_EQ(errno, ENOENT);
  EXPECT_FALSE(fd);
  fd = Fd(::open("/nonesuch", O_RDONLY));
  EXPECT_EQ(errno, ENOENT);
}

TEST(Descriptors, AreAllowedAsFarAsTheyMayBe) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low{.rlim_cur = 100, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  EXPECT_EQ(allow_descriptors(150), 150u);
  EXPECT_EQ(allow_descriptors(120), 150u);
  rlimit now{};
  ::getrlimit(RLIMIT_NOFILE, &now);
  EXPECT_EQ(now.rlim_cur, 150u);
  EXPECT_EQ(now.rlim_max, before.rlim_max);
  EXPECT_EQ(allow_descriptors(SIZE_MAX), before.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &before);
}

TEST(Deadline, CountsDown) {
  EXPECT_TRUE(Deadline(seconds(-1)).passed());
  EXPECT_EQ(Deadline(seconds(-1)).left_ms(), 0);
  Deadline later(seconds(60));
  EXPECT_FALSE(later.passed());
  EXPECT_GT(later.left_ms(), 50000);
  EXPECT_EQ(later.left_ms(10), 10);
}

}  // namespace
}  // namespace ringcoll
