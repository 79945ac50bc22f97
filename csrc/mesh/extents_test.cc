#include "mesh/extents.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

#include "base/error.h"

namespace ringcoll {
namespace {

class Reads final : public Readers {
 public:
  explicit Reads(const std::atomic<bool>& still) : still_(still) {}
  bool any() override { return still_; }

 private:
  const std::atomic<bool>& still_;
};

class ExtentsTest : public ::testing::Test {
 protected:
  static constexpr size_t kEach = 16 << 10, kCount = 3;

  void TearDown() override { loop_.reset(); }  // before what it calls, as a mesh does
  ReaderList reader() {
    ReaderList readers;
    readers.push_back(std::make_unique<Reads>(reads_));
    return readers;
  }
  int64_t used_bytes() const {
    struct stat status{};
    EXPECT_EQ(::fstat(arena_.fd(), &status), 0);
    return status.st_blocks * 512;
  }
  std::string why_not() {
    try {
      extents_.take(this);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kTransport);
      return error.what();
    }
    return "";
  }

  SharedMemory arena_ = SharedMemory::create(kEach * kCount);
  std::atomic<bool> reads_ = true;
  int one_ = 0, other_ = 0;  // holders
  std::unique_ptr<EventLoop> loop_ = std::make_unique<EventLoop>("test");
  Extents extents_{arena_, {arena_.data(), kEach * kCount}, kEach, "a test", *loop_};
};

TEST_F(ExtentsTest, AreOneHoldersAtATime) {
  std::byte* end = arena_.data();
  for (size_t i = 0; i < kCount; i++) {
    auto extent = extents_.take(&one_);
    EXPECT_EQ(extent.size(), kEach);
    EXPECT_EQ(extent.data(), end);
    end = extent.data() + extent.size();
  }
  std::string why = why_not();
  EXPECT_NE(why.find("no more shared memory for a test: 3 times"), std::string::npos) << why;
  extents_.give_back({arena_.data() + kEach, kEach}, {});
  EXPECT_EQ(extents_.take(&one_).data(), arena_.data() + kEach);
}

// So that a group finds memory that is mapped, and as little as possible is.
TEST_F(ExtentsTest, TheOneThatWasHeldLastIsTakenFirst) {
  auto first = extents_.take(&one_), second = extents_.take(&one_);
  extents_.give_back(second, {});
  extents_.give_back(first, {});
  EXPECT_EQ(extents_.take(&other_).data(), first.data());
  EXPECT_EQ(extents_.take(&other_).data(), second.data());
}

TEST_F(ExtentsTest, AreNobodyElsesWhileTheyAreRead) {
  auto read = extents_.take(&one_);
  extents_.give_back(read, reader());
  EXPECT_NE(extents_.take(&other_).data(), read.data());
  reads_ = false;
  EXPECT_EQ(extents_.take(&other_).data(), read.data());
}

TEST_F(ExtentsTest, AParkedOneIsItsHoldersUntilAnotherTakesIt) {
  auto mine = extents_.take(&one_);
  extents_.park(mine, {});
  EXPECT_TRUE(extents_.resume(mine, &one_));
  extents_.park(mine, {});
  EXPECT_EQ(extents_.take(&other_).data(), mine.data());
  EXPECT_FALSE(extents_.resume(mine, &one_));
  extents_.park(mine, {});
  EXPECT_FALSE(extents_.resume(mine, &one_)) << "it is the other's";
  EXPECT_TRUE(extents_.resume(mine, &other_));
}

// Who knows best when it may write there is the one whose readers they are.
TEST_F(ExtentsTest, AParkedOneThatIsReadIsItsHoldersAlone) {
  auto mine = extents_.take(&one_);
  extents_.park(mine, reader());
  EXPECT_NE(extents_.take(&other_).data(), mine.data());
  EXPECT_TRUE(extents_.resume(mine, &one_));
}

TEST_F(ExtentsTest, PagesOfWhatNobodyHoldsGoBackToTheSystem) {
  auto held = extents_.take(&one_), parked = extents_.take(&one_), read = extents_.take(&other_);
  for (auto extent : {held, parked, read}) std::memset(extent.data(), 1, extent.size());
  extents_.park(parked, {});
  extents_.give_back(read, reader());
  auto wait_for = [&](int64_t bytes) {
    Deadline deadline(std::chrono::seconds(20));
    while (used_bytes() != bytes && !deadline.passed())
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(used_bytes(), bytes);
  };
  wait_for(2 * kEach);
  EXPECT_EQ(read[0], std::byte{1});
  EXPECT_EQ(held[0], std::byte{1});
  EXPECT_FALSE(extents_.resume(parked, &one_));
  reads_ = false;
  wait_for(kEach);
}

// The thread that gives pages back may come after what readers look at has gone.
TEST_F(ExtentsTest, NobodyAsksReadersAfterTheEnd) {
  struct Gone final : Readers {
    explicit Gone(bool& has_ended) : ended(has_ended) {}
    bool any() override {
      EXPECT_FALSE(ended) << "it is asked";
      return true;
    }
    bool& ended;
  };
  bool ended = false;
  ReaderList readers;
  readers.push_back(std::make_unique<Gone>(ended));
  extents_.give_back(extents_.take(&one_), std::move(readers));
  extents_.end();
  ended = true;
  std::this_thread::sleep_for(Extents::kIdle + std::chrono::milliseconds(200));
}

TEST_F(ExtentsTest, CallMemoryGivesWhatItHasBack) {
  bool fresh = false;
  const std::byte* at = nullptr;
  {
    CallMemory memory({}, extents_);
    EXPECT_EQ(memory.bytes(), kEach);
    at = memory.take(&fresh).data();
    EXPECT_TRUE(fresh);
    EXPECT_EQ(memory.take(&fresh).data(), at);
    EXPECT_FALSE(fresh) << "it has it";
    memory.park({});
    EXPECT_FALSE(memory.has_extent());
    EXPECT_EQ(memory.take(&fresh).data(), at);
    EXPECT_FALSE(fresh) << "nobody had it meanwhile";
  }
  EXPECT_EQ(extents_.take(&one_).data(), at);
}

TEST_F(ExtentsTest, CallMemoryThatHasEndedLeavesWhatAnotherHasTaken) {
  CallMemory memory({}, extents_);
  bool fresh = false;
  auto extent = memory.take(&fresh);
  memory.park({});
  EXPECT_EQ(extents_.take(&other_).data(), extent.data());
  memory.end({});
  EXPECT_NE(extents_.take(&one_).data(), extent.data());
}

}  // namespace
}  // namespace ringcoll
