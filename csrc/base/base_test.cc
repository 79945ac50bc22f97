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
#include "base/config.h"
#include "base/descriptors.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/fork.h"
#include "base/machine.h"
#include "base/types.h"

namespace ringcoll {
namespace {

Getenv from(std::map<std::string, std::string> values) {
  auto kept = std::make_shared<std::map<std::string, std::string>>(std::move(values));
  return [kept](const char* name) {
    auto it = kept->find(name);
    return it == kept->end() ? nullptr : it->second.c_str();
  };
}

std::string refusal(const char* name, const char* value) {
  try {
    read_config(from({{name, value}}));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    return error.what();
  }
  return "";
}

TEST(Deadline, ForEverIsNotInThePast) {
  for (double s : {1e10, 1e300, std::numeric_limits<double>::infinity()}) {
    EXPECT_FALSE(Deadline(seconds(s)).passed()) << s;
    EXPECT_GT(to_seconds(Deadline(seconds(s) + seconds(2)).left()), 1e9) << s;
    EXPECT_TRUE(Deadline(seconds(-s)).passed()) << s;
  }
}

TEST(Config, KnowsWhatLaunchersSayOfInterfaces) {
  auto told = [](std::map<std::string, std::string> values) {
    LauncherInterface said = read_config(from(std::move(values))).launcher_interface;
    return said.variable + " " + said.names;
  };
  EXPECT_EQ(read_config(from({})).launcher_interface.names, "");
  EXPECT_EQ(told({{"GLOO_SOCKET_IFNAME", "ib0"}}), "GLOO_SOCKET_IFNAME =ib0");
  EXPECT_EQ(told({{"NCCL_SOCKET_IFNAME", "^docker,lo"}}), "NCCL_SOCKET_IFNAME ^docker,lo");
  EXPECT_EQ(told({{"HOROVOD_GLOO_IFACE", "eth1"}, {"GLOO_SOCKET_IFNAME", "ib0"}}),
            "HOROVOD_GLOO_IFACE =eth1");
  // As horovodrun does for --network-interfaces eth0,eth1.
  EXPECT_EQ(told({{"HOROVOD_GLOO_IFACE", "eth1"}, {"NCCL_SOCKET_IFNAME", "eth0,eth1"}}),
            "NCCL_SOCKET_IFNAME =eth0,eth1");
  EXPECT_EQ(told({{"HOROVOD_GLOO_IFACE", "eth1"}, {"NCCL_SOCKET_IFNAME", "eth10"}}),
            "HOROVOD_GLOO_IFACE =eth1");
}

TEST(Config, Defaults) {
  Config config = read_config(from({}));
  EXPECT_EQ(config.transport, "auto");
  EXPECT_EQ(config.arena_bytes, 64 << 20);
  EXPECT_EQ(config.timeout_s, 30);
  EXPECT_TRUE(config.huge_pages);
}

TEST(Config, ReadsSuffixesAndWords) {
  Config config = read_config(from({{"RINGCOLL_ARENA_BYTES", "2G"},
                                    {"RINGCOLL_INLINE_BYTES", "512"},
                                    {"RINGCOLL_TRANSPORT", "tcp"},
                                    {"RINGCOLL_TIMEOUT_S", "0.5"}}));
  EXPECT_EQ(config.arena_bytes, int64_t{2} << 30);
  EXPECT_EQ(config.inline_bytes, 512);
  EXPECT_EQ(config.transport, "tcp");
  EXPECT_EQ(config.timeout_s, 0.5);
}

TEST(Config, RefusesABadValueWithItsRange) {
  EXPECT_NE(refusal("RINGCOLL_SLOTS", "65").find("RINGCOLL_SLOTS=\"65\""), std::string::npos);
  EXPECT_NE(refusal("RINGCOLL_SLOTS", "65").find("0 to 64"), std::string::npos);
  EXPECT_NE(refusal("RINGCOLL_TRANSPORT", "ib").find("shm, tcp"), std::string::npos);
  for (const char* bad : {"x", "4x", "", " 4", "99999999999999999999", "9223372036854775807G"}) {
    bool empty_means_default = *bad == 0;
    EXPECT_EQ(refusal("RINGCOLL_ARENA_BYTES", bad).empty(), empty_means_default) << bad;
  }
  EXPECT_FALSE(refusal("RINGCOLL_TIMEOUT_S", "nan").empty());
  EXPECT_FALSE(refusal("RINGCOLL_HUGE_PAGES", "yes").empty());
}

TEST(Config, WarnsOfAnUnknownNameWithTheNearest) {
  std::vector<std::string> names = {"RINGCOLL_SLOT", "RINGCOLL_SLOTS", "RINGCOLL_STORE", "HOME"};
  auto warnings = unknown_knobs(names);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("RINGCOLL_SLOTS"), std::string::npos);
}

TEST(Config, NeverShowsTheSecret) {
  for (const Knob& knob : describe_knobs(from({{"RINGCOLL_SECRET", "hunter2"}})))
    EXPECT_EQ(knob.value.find("hunter2"), std::string::npos) << knob.name;
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
