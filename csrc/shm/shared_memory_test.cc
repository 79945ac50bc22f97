#include "shm/shared_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "base/clock.h"
#include "base/error.h"

namespace ringcoll {
namespace {

template <typename Call>
std::string message_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kTransport);
    return error.what();
  }
  return "no error";
}

// Runs `body` in a child; the exit status of the child, or -1 if a signal ended it.
template <typename Body>
int in_child(Body&& body) {
  pid_t pid = ::fork();
  if (pid == 0) ::_exit(body());
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(SharedMemory, IsZeroedAndRoundedUpToPages) {
  auto memory = SharedMemory::create(5000);
  EXPECT_EQ(memory.bytes() % 4096, 0u);
  EXPECT_GE(memory.bytes(), 5000u);
  for (size_t i = 0; i < memory.bytes(); i += 64) ASSERT_EQ(memory.data()[i], std::byte{0});
  EXPECT_TRUE(memory.contains(memory.data(), memory.bytes()));
  EXPECT_FALSE(memory.contains(memory.data() + 1, memory.bytes()));
  EXPECT_FALSE(memory.contains(&memory, 1));
}

// All who map it see zeros; what lies in a page that is not given back as a whole stays.
TEST(SharedMemory, WhatIsDiscardedIsTheSystemsAgain) {
  constexpr size_t kPages = 8, kPage = 4096;
  auto memory = SharedMemory::create(kPages * kPage);
  auto other = SharedMemory::open(::getpid(), memory.fd(), kPages * kPage, false);
  EXPECT_EQ(other.inode(), memory.inode());
  EXPECT_NE(SharedMemory::create(kPage).inode(), memory.inode());
  auto blocks = [&] {
    struct stat status{};
    EXPECT_EQ(::fstat(memory.fd(), &status), 0);
    return status.st_blocks * 512;
  };
  std::memset(memory.data(), 1, kPages * kPage);
  EXPECT_EQ(blocks(), 8 * 4096);
  memory.discard(memory.data() + 100, kPage);
  EXPECT_EQ(blocks(), 8 * 4096) << "no page as a whole";
  memory.discard(memory.data() + kPage - 1, 2 * kPage + 2);
  EXPECT_EQ(blocks(), 6 * 4096);
  EXPECT_EQ(other.data()[kPage - 1], std::byte{1});
  EXPECT_EQ(other.data()[kPage], std::byte{0});
  EXPECT_EQ(other.data()[3 * kPage - 1], std::byte{0});
  EXPECT_EQ(other.data()[3 * kPage], std::byte{1});
  memory.data()[kPage] = std::byte{2};
  EXPECT_EQ(other.data()[kPage], std::byte{2});
}

TEST(SharedMemory, WhatIsClearedReadsAsZerosAndNothingElseDoes) {
  constexpr size_t kPage = 4096, kBytes = 8 * kPage;
  auto memory = SharedMemory::create(kBytes);
  auto other = SharedMemory::open(::getpid(), memory.fd(), kBytes, false);
  for (size_t first : {size_t{0}, size_t{8}, kPage - 8, kPage, kPage + 104})
    for (size_t bytes : {size_t{0}, size_t{8}, size_t{104}, kPage, kPage + 8, 3 * kPage}) {
      std::memset(memory.data(), 1, kBytes);
      memory.clear(memory.data() + first, bytes);
      for (size_t i = 0; i < kBytes; i++)
        ASSERT_EQ(other.data()[i], std::byte{i < first || i >= first + bytes})
            << "byte " << i << " of " << bytes << " from " << first;
    }
}

TEST(SharedMemory, AnotherProcessSeesWhatIsWritten) {
  auto memory = SharedMemory::create(3 << 20);
  int pid = ::getpid();
  std::strcpy(reinterpret_cast<char*>(memory.data()) + (2 << 20), "hello");
  EXPECT_EQ(in_child([&] {
              auto theirs = SharedMemory::open(pid, memory.fd(), 3 << 20, true);
              bool same = !std::strcmp(reinterpret_cast<char*>(theirs.data()) + (2 << 20), "hello");
              theirs.data()[7] = std::byte{42};
              return same ? 0 : 1;
            }),
            0);
  EXPECT_EQ(memory.data()[7], std::byte{42});
}

size_t allocated_bytes(const SharedMemory& memory) {
  struct stat status{};
  EXPECT_EQ(::fstat(memory.fd(), &status), 0);
  return static_cast<size_t>(status.st_blocks) * 512;
}

TEST(SharedMemory, PagesCountWhenTheyAreUsed) {
  auto memory = SharedMemory::create(4 << 20);
  EXPECT_EQ(allocated_bytes(memory), 0u);
  memory.data()[1 << 20] = std::byte{7};
  EXPECT_GT(allocated_bytes(memory), 0u);
  for (size_t i = 0; i < memory.bytes(); i += 512)
    ASSERT_EQ(memory.data()[i], std::byte(i == 1 << 20 ? 7 : 0));
}

TEST(SharedMemory, AMappingOfAPeersMemoryHoldsNoDescriptor) {
  auto memory = SharedMemory::create(4096);
  EXPECT_GE(memory.fd(), 0);
  EXPECT_EQ(SharedMemory::open(::getpid(), memory.fd(), 4096, false).fd(), -1);
}

TEST(SharedMemory, OpenedReadOnlyCannotBeMadeWritable) {
  auto memory = SharedMemory::create(4096);
  int pid = ::getpid();
  EXPECT_EQ(in_child([&] {
              auto view = SharedMemory::open(pid, memory.fd(), 4096, false);
              int done = ::mprotect(view.data(), view.bytes(), PROT_READ | PROT_WRITE);
              return done == -1 && errno == EACCES ? 0 : 1;
            }),
            0);
}

TEST(SharedMemory, SurvivesItsMakerAndCannotShrink) {
  auto memory = SharedMemory::create(8192);
  auto view = SharedMemory::open(::getpid(), memory.fd(), 8192, false);
  EXPECT_EQ(::ftruncate(memory.fd(), 0), -1);
  EXPECT_EQ(errno, EPERM);
  memory.data()[8000] = std::byte{1};
  memory = SharedMemory();
  EXPECT_EQ(view.data()[8000], std::byte{1});
}

TEST(SharedMemory, MoveLeavesNothingBehind) {
  auto first = SharedMemory::create(4096);
  std::byte* data = first.data();
  SharedMemory second = std::move(first);
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(first.data(), nullptr);
  EXPECT_EQ(first.bytes(), 0u);
  EXPECT_EQ(first.fd(), -1);
}

TEST(SharedMemory, ErrorsNameCauseAndRemedy) {
  auto memory = SharedMemory::create(4096);
  auto too_long = message_of([&] { SharedMemory::open(::getpid(), memory.fd(), 8192, false); });
  EXPECT_NE(too_long.find("only 4096 bytes"), std::string::npos) << too_long;
  auto no_fd = message_of([] { SharedMemory::open(::getpid(), 4999, 4096, false); });
  EXPECT_NE(no_fd.find("PID namespace"), std::string::npos) << no_fd;
  auto no_process = message_of([] { SharedMemory::open(1 << 29, 3, 4096, false); });
  EXPECT_NE(no_process.find("PID namespace"), std::string::npos) << no_process;
  Fd other(::open("/dev/null", O_RDONLY));
  auto foreign = message_of([&] { SharedMemory::open(::getpid(), other.get(), 4096, false); });
  EXPECT_NE(foreign.find("/dev/null, not memory of ringcoll"), std::string::npos) << foreign;
  auto huge = message_of([] { SharedMemory::create(size_t{1} << 60); });
  EXPECT_NE(huge.find("shared memory"), std::string::npos) << huge;
}

TEST(SharedMemory, TooManyOpenFilesIsNamed) {
  EXPECT_EQ(in_child([] {
              rlimit few{16, 16};
              ::setrlimit(RLIMIT_NOFILE, &few);
              while (::dup(2) >= 0) {
              }
              auto text = message_of([] { SharedMemory::create(4096); });
              return text.find("ulimit -n") == std::string::npos ? 1 : 0;
            }),
            0);
}

TEST(SharedMemory, ALimitOnTheLengthOfFilesIsNamed) {
  EXPECT_EQ(in_child([] {
              rlimit little{1 << 20, 1 << 20};
              ::setrlimit(RLIMIT_FSIZE, &little);
              SharedMemory::create(1 << 20);
              auto text = message_of([] { SharedMemory::create((1 << 20) + 1); });
              return text.find("ulimit -f") == std::string::npos ? 1 : 0;
            }),
            0);
}

TEST(SharedMemory, AForkedChildThatEndsHurtsNobody) {
  auto memory = SharedMemory::create(4096);
  memory.data()[0] = std::byte{5};
  EXPECT_EQ(in_child([&] {
              memory = SharedMemory();  // as a destructor in the child would
              return 0;
            }),
            0);
  EXPECT_EQ(memory.data()[0], std::byte{5});
  memory.data()[1] = std::byte{6};
}

TEST(BootId, IsStable) {
  EXPECT_EQ(boot_id().size(), 36u);
  EXPECT_EQ(boot_id(), boot_id());
}

}  // namespace
}  // namespace ringcoll
