#include "shm/unmap_watch.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "base/error.h"

// glibc's own: what a sanitizer puts in their place keeps a block that was freed.
extern "C" void* __libc_malloc(size_t bytes);
extern "C" void __libc_free(void* block);

namespace ringcoll {
namespace {

constexpr size_t kPage = 4096, kBytes = 64 * kPage;

std::byte* map(void* at = nullptr) {
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0);
  void* mapped = ::mmap(at, kBytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  EXPECT_NE(mapped, MAP_FAILED);
  std::memset(mapped, 1, kBytes);
  return static_cast<std::byte*>(mapped);
}

class UnmapWatchTest : public testing::Test {
 protected:
  void SetUp() override {
    try {
      watch_ = std::make_unique<UnmapWatch>();
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
  }
  bool changed(const void* data, size_t bytes) {
    return changed(reinterpret_cast<uintptr_t>(data), bytes);
  }
  bool changed(uintptr_t first, size_t bytes) {
    bool found = false;
    watch_->take_changes(
        [&](uintptr_t from, uintptr_t to) { found |= from < first + bytes && first < to; });
    return found;
  }

  std::unique_ptr<UnmapWatch> watch_;
};

TEST_F(UnmapWatchTest, SaysNothingOfMemoryThatStays) {
  std::byte* memory = map();
  ASSERT_TRUE(watch_->watch(memory, kBytes));
  std::memset(memory, 2, kBytes);
  EXPECT_EQ(::mprotect(memory, kBytes, PROT_READ), 0);
  EXPECT_FALSE(changed(memory, kBytes));
  ::munmap(memory, kBytes);
}

TEST_F(UnmapWatchTest, NoticesWhatMakesAnAddressMeanOtherPages) {
  std::byte* unmapped = map();
  ASSERT_TRUE(watch_->watch(unmapped, kBytes));
  ::munmap(unmapped, kBytes);
  EXPECT_TRUE(changed(unmapped, kBytes));
  EXPECT_FALSE(changed(unmapped, kBytes)) << "told twice";

  std::byte* replaced = map();
  ASSERT_TRUE(watch_->watch(replaced, kBytes));
  map(replaced);
  EXPECT_TRUE(changed(replaced, kBytes));

  ASSERT_TRUE(watch_->watch(replaced, kBytes));
  ASSERT_EQ(::madvise(replaced + 3 * kPage, kPage, MADV_DONTNEED), 0);
  EXPECT_TRUE(changed(replaced + 3 * kPage, kPage));

  std::byte* target = map();
  void* moved = ::mremap(replaced, kBytes, kBytes, MREMAP_MAYMOVE | MREMAP_FIXED, target);
  ASSERT_EQ(moved, target);
  EXPECT_TRUE(changed(replaced, kBytes));
  ::munmap(target, kBytes);
}

TEST_F(UnmapWatchTest, WatchesTheHeap) {
  // Over malloc's threshold a block is a mapping of its own.
  void* block = __libc_malloc(64 << 20);
  std::byte* within = static_cast<std::byte*>(block) + 5000;
  volatile auto address = reinterpret_cast<uintptr_t>(within);  // a number: it outlives the block
  ASSERT_TRUE(watch_->watch(within, 100));
  __libc_free(block);
  EXPECT_TRUE(changed(address, 100));
}

TEST_F(UnmapWatchTest, CannotWatchAFile) {
  void* file = ::mmap(nullptr, kPage, PROT_READ, MAP_PRIVATE, ::fileno(std::tmpfile()), 0);
  ASSERT_NE(file, MAP_FAILED);
  EXPECT_FALSE(watch_->watch(file, kPage));
  ::munmap(file, kPage);
}

TEST_F(UnmapWatchTest, ManyChangesAreToldAsOne) {
  std::vector<std::byte*> all;
  for (int i = 0; i < 1000; i++) {
    all.push_back(map());
    ASSERT_TRUE(watch_->watch(all.back(), kBytes));
  }
  for (std::byte* memory : all) ::munmap(memory, kBytes);
  int calls = 0;
  std::vector<bool> told(all.size());
  watch_->take_changes([&](uintptr_t from, uintptr_t to) {
    calls++;
    for (size_t i = 0; i < all.size(); i++)
      if (from <= reinterpret_cast<uintptr_t>(all[i]) && reinterpret_cast<uintptr_t>(all[i]) < to)
        told[i] = true;
  });
  EXPECT_LE(calls, 256);
  EXPECT_EQ(std::count(told.begin(), told.end(), true), 1000);
}

// One thread frees, another gets the same address at once and asks: the question finds the change.
TEST_F(UnmapWatchTest, AnAddressThatAnotherThreadGetsIsNeverStale) {
  std::byte* memory = map();
  ASSERT_TRUE(watch_->watch(memory, kBytes));
  std::atomic<int> turn = 0;
  constexpr int kTurns = 2000;
  std::thread frees([&] {
    for (int i = 0; i < kTurns; i++) {
      while (turn.load() != 2 * i) {
      }
      ::munmap(memory, kBytes);  // held by the kernel until the event is read
    }
  });
  for (int i = 0; i < kTurns; i++) {
    turn = 2 * i;
    // As soon as the address is free, mapped again here: while the other is still in munmap().
    while (::mmap(memory, kBytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != memory) {
    }
    EXPECT_TRUE(changed(memory, kBytes)) << "turn " << i;
    EXPECT_TRUE(watch_->watch(memory, kBytes));
    turn = 2 * i + 1;
  }
  frees.join();
}

TEST_F(UnmapWatchTest, AChildMayUnmapItsCopy) {
  std::byte* memory = map();
  ASSERT_TRUE(watch_->watch(memory, kBytes));
  pid_t child = ::fork();
  if (child == 0) ::_exit(::munmap(memory, kBytes) == 0 ? 0 : 1);
  int status = 1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(changed(memory, kBytes));
  ::munmap(memory, kBytes);
}

// The child has a copy of the descriptor, and closing ours would end nothing.
TEST_F(UnmapWatchTest, NobodyIsHeldByAWatchThatIsGoneWhileAChildLives) {
  std::byte* whole = map();
  std::byte* holed = map();
  std::byte* moved = map();
  for (std::byte* memory : {whole, holed, moved}) ASSERT_TRUE(watch_->watch(memory, kBytes));
  int files = ::fileno(std::tmpfile());
  ASSERT_EQ(::mmap(holed + 5 * kPage, kPage, PROT_READ, MAP_SHARED | MAP_FIXED, files, 0),
            holed + 5 * kPage);
  // What it grows by is watched too, and no event tells of that.
  moved = static_cast<std::byte*>(::mremap(moved, kBytes, 4 * kBytes, MREMAP_MAYMOVE));
  ASSERT_NE(moved, MAP_FAILED);
  pid_t child = ::fork();
  if (child == 0) {
    ::alarm(10);  // its end lets go in any case
    ::_exit(::pause());
  }
  watch_.reset();
  ::munmap(whole, kBytes);
  ::munmap(holed, kBytes);
  ::munmap(moved, 4 * kBytes);
  ASSERT_EQ(::waitpid(child, nullptr, WNOHANG), 0) << "held by the kernel until the child's end";
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace ringcoll
