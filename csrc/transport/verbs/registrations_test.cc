#include "transport/verbs/registrations.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "base/error.h"
#include "transport/verbs/device_testing.h"

namespace ringcoll::rdma {
namespace {

using testing::RdmaForTests;

constexpr size_t kBytes = 1 << 20;

/// A mapping of its own, as malloc makes for large blocks.
class Block {
 public:
  explicit Block(void* at = nullptr) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0);
    data_ = static_cast<std::byte*>(::mmap(at, kBytes, PROT_READ | PROT_WRITE, flags, -1, 0));
    invariant(data_ != MAP_FAILED, "mmap");
  }
  ~Block() {
    if (data_) ::munmap(data_, kBytes);
  }
  Block(const Block&) = delete;
  std::byte* data() const { return data_; }

 private:
  std::byte* data_;
};

class RegistrationsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!RdmaForTests::fake()) GTEST_SKIP() << "made for the software device";
    try {
      UnmapWatch watch;
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
    context_ = verbs::Context("fake0");
    domain_ = verbs::ProtectionDomain(context_);
    make(16 * kBytes);
  }
  void make(uint64_t most_bytes) {
    registrations_ = std::make_unique<Registrations>(most_bytes, watch_);
    registrations_->add(domain_);
  }
  /// A call with these loans, while the last `in_flight` before it have not ended; which were
  /// granted.
  std::vector<bool> lend(std::vector<Loan> loans, size_t in_flight = 0) {
    registrations_->lend(loans, in_flight);
    std::vector<bool> granted;
    for (const Loan& loan : loans) granted.push_back(loan.granted);
    return granted;
  }
  bool lend_one(const std::byte* data, bool written = true) {
    return lend({{const_cast<std::byte*>(data), kBytes, written}})[0];
  }
  const verbs::MemoryRegion* find(const std::byte* data, uint64_t bytes = 1, bool written = false) {
    return registrations_->find(domain_, data, bytes, written);
  }

  verbs::Context context_;
  verbs::ProtectionDomain domain_;
  CommonWatch watch_;
  std::unique_ptr<Registrations> registrations_;
};

TEST_F(RegistrationsTest, WhatComesBackIsRegisteredOnce) {
  Block block;
  EXPECT_FALSE(lend_one(block.data()));
  EXPECT_EQ(find(block.data()), nullptr);
  EXPECT_TRUE(lend_one(block.data()));
  uint32_t key = find(block.data())->rkey();
  EXPECT_TRUE(lend_one(block.data()));
  EXPECT_EQ(find(block.data())->rkey(), key);
  EXPECT_NE(find(block.data() + kBytes - 8, 8, true), nullptr);
  EXPECT_EQ(find(block.data() + kBytes - 8, 9), nullptr) << "reaches beyond";
  EXPECT_EQ(find(block.data() - 1), nullptr);
  EXPECT_EQ(registrations_->registered_bytes(), kBytes);
  EXPECT_TRUE(lend({{block.data() + 8, kBytes - 8, true}})[0]) << "a part of it";
  EXPECT_FALSE(lend({{block.data() + 8, kBytes, true}})[0]) << "reaches beyond";
}

// The whole and its parts: each registers the same memory, and each forgets it, whoever asks first.
TEST_F(RegistrationsTest, SeveralWatchTheSameMemory) {
  Registrations other(16 * kBytes, watch_), idle(16 * kBytes, watch_);
  other.add(domain_);
  auto lend_other = [&](std::byte* data) {
    Loan loan{data, kBytes, true};
    other.lend({&loan, 1}, 0);
    return loan.granted;
  };
  auto block = std::make_unique<Block>();
  std::byte* at = block->data();
  lend_one(at), lend_other(at);
  EXPECT_TRUE(lend_one(at));
  EXPECT_TRUE(lend_other(at));
  Block again(at);
  EXPECT_FALSE(lend_one(at));
  EXPECT_FALSE(lend_other(at)) << "it was told to the first";
  EXPECT_EQ(other.registered_bytes(), 0u);
}

TEST_F(RegistrationsTest, OnlyWhatThisCallLentIsFound) {
  Block block;
  lend_one(block.data());
  lend_one(block.data());
  lend({});
  EXPECT_EQ(find(block.data()), nullptr);
  EXPECT_TRUE(lend_one(block.data()));
}

TEST_F(RegistrationsTest, WhatCallsInFlightLentIsFoundToo) {
  make(2 * kBytes);  // room for two blocks
  Block first, second, third;
  for (int i = 0; i < 2; i++) lend_one(first.data()), lend_one(second.data());
  ASSERT_TRUE(lend_one(first.data()));
  const Loan loan{second.data(), kBytes, true}, another{third.data(), kBytes, true};
  EXPECT_TRUE(lend({loan}, 1)[0]);
  EXPECT_NE(find(first.data()), nullptr);
  lend({another}, 2);
  EXPECT_FALSE(lend({another}, 3)[0]) << "what is in flight makes no room";
  EXPECT_NE(find(first.data()), nullptr);
  EXPECT_NE(find(second.data()), nullptr);
  EXPECT_TRUE(lend({another}, 0)[0]);
  EXPECT_EQ(find(first.data()), nullptr) << "its call has ended";
}

// A call goes on with memory that is a part of what was registered, though another part has gone.
TEST_F(RegistrationsTest, WhatChangesWhileACallIsInFlightIsTakenFromItAlone) {
  Block block, other;
  constexpr size_t kPart = kBytes / 4;
  lend_one(block.data());
  ASSERT_TRUE(lend_one(block.data()));
  uint32_t key = find(block.data())->rkey();
  ASSERT_TRUE(lend({{block.data() + 3 * kPart, kPart, true}})[0]);
  ASSERT_EQ(::madvise(block.data() + kPart, kPart, MADV_DONTNEED), 0);
  lend({{other.data(), kBytes, true}}, 1);
  EXPECT_EQ(registrations_->registered_bytes(), 0u);
  ASSERT_NE(find(block.data() + 3 * kPart, kPart, true), nullptr);
  EXPECT_EQ(find(block.data() + 3 * kPart, kPart, true)->rkey(), key);
  EXPECT_EQ(find(block.data() + kPart), nullptr) << "its pages are others now";
  ASSERT_EQ(::madvise(block.data() + 2 * kPart, kPart, MADV_DONTNEED), 0);
  lend({{other.data(), kBytes, true}}, 2);
  EXPECT_NE(find(block.data() + 3 * kPart, kPart, true), nullptr);
  EXPECT_EQ(find(block.data() + 2 * kPart), nullptr);
  lend({}, 0);
  EXPECT_EQ(find(block.data() + 3 * kPart), nullptr);
}

// What others have been told, this one is told later, when the memory is another's.
TEST_F(RegistrationsTest, AChangeFromBeforeTakesNothingFromACallInFlight) {
  Registrations other(16 * kBytes, watch_);
  other.add(domain_);
  auto block = std::make_unique<Block>();
  std::byte* at = block->data();
  Loan loan{at, kBytes, true};
  for (int i = 0; i < 2; i++) other.lend({&loan, 1}, 0);
  ASSERT_TRUE(loan.granted);
  Block again(at), elsewhere;
  other.lend({&loan, 1}, 0);
  EXPECT_FALSE(loan.granted);
  lend_one(at);
  ASSERT_TRUE(lend_one(at)) << "the first that this one registers";
  lend({{elsewhere.data(), kBytes, true}}, 1);
  EXPECT_NE(find(at, kBytes, true), nullptr);
}

// So many changes are told as one of everything.
TEST_F(RegistrationsTest, ManyChangesTakeNothingFromACallInFlight) {
  Block block, other;
  std::vector<Loan> loans = {{block.data(), kBytes, true}, {other.data(), kBytes, true}};
  lend(loans);
  ASSERT_EQ(lend(loans), std::vector<bool>(2, true));
  ASSERT_TRUE(lend_one(block.data()));
  for (int i = 0; i < 1000; i++)
    ASSERT_EQ(::madvise(other.data() + i % 2 * 8192, 4096, MADV_DONTNEED), 0);
  lend({{other.data(), kBytes, true}}, 1);
  EXPECT_EQ(registrations_->registered_bytes(), 0u);
  EXPECT_NE(find(block.data(), kBytes, true), nullptr);
  EXPECT_EQ(find(other.data()), nullptr);
  lend({}, 0);
  EXPECT_EQ(find(block.data()), nullptr);
}

TEST_F(RegistrationsTest, MemoryThatWasMappedAnewIsRegisteredAnew) {
  auto block = std::make_unique<Block>();
  std::byte* at = block->data();
  lend_one(at);
  ASSERT_TRUE(lend_one(at));
  uint32_t key = find(at)->rkey();
  Block again(at);
  EXPECT_FALSE(lend_one(at)) << "the pages that were registered are gone";
  EXPECT_EQ(registrations_->registered_bytes(), 0u);
  EXPECT_TRUE(lend_one(at));
  EXPECT_NE(find(at)->rkey(), key);
  ASSERT_EQ(::madvise(at + 8192, 4096, MADV_DONTNEED), 0);
  EXPECT_FALSE(lend_one(at));
}

TEST_F(RegistrationsTest, AChangeForgetsAllThatItTouchesAndNothingElse) {
  Block block, other;
  constexpr size_t kPart = kBytes / 4;
  std::vector<Loan> loans = {{other.data(), kBytes, true}};
  for (size_t i = 0; i < 4; i++) loans.push_back({block.data() + i * kPart, kPart, true});
  lend(loans);
  ASSERT_EQ(lend(loans), std::vector<bool>(5, true));
  ASSERT_EQ(::madvise(block.data() + kPart, 2 * kPart, MADV_DONTNEED), 0);
  EXPECT_EQ(lend(loans), (std::vector<bool>{true, true, false, false, true}));
  EXPECT_EQ(registrations_->registered_bytes(), kBytes + 2 * kPart);
  ASSERT_EQ(lend(loans), std::vector<bool>(5, true));
  Block again(block.data());
  EXPECT_EQ(lend(loans), (std::vector<bool>{true, false, false, false, false}));
  EXPECT_EQ(registrations_->registered_bytes(), kBytes);
}

TEST_F(RegistrationsTest, AWholeTakesThePlaceOfItsPartsAndOfNothingElse) {
  Block block;
  constexpr size_t kPart = kBytes / 4;
  std::vector<Loan> parts;
  for (size_t i = 0; i < 4; i++) parts.push_back({block.data() + i * kPart, kPart, true});
  lend(parts);
  ASSERT_EQ(lend(parts), std::vector<bool>(4, true));
  Loan middle{block.data() + kPart, 2 * kPart, true};
  lend({middle});
  EXPECT_EQ(lend({parts[0], middle, parts[3]}), std::vector<bool>(3, true));
  EXPECT_EQ(registrations_->registered_bytes(), kBytes);
  EXPECT_NE(find(middle.data, middle.bytes, true), nullptr);
}

TEST_F(RegistrationsTest, AnInputIsNotOpenToWrites) {
  Block block;
  lend_one(block.data(), false);
  ASSERT_TRUE(lend_one(block.data(), false));
  EXPECT_NE(find(block.data()), nullptr);
  EXPECT_EQ(find(block.data(), 1, true), nullptr);
  EXPECT_FALSE(lend_one(block.data(), true)) << "seen as an output once";
  EXPECT_TRUE(lend_one(block.data(), true));
  EXPECT_NE(find(block.data(), 1, true), nullptr);
  EXPECT_TRUE(lend_one(block.data(), false)) << "and is still an input";
}

TEST_F(RegistrationsTest, TheLeastRecentlyUsedMakesRoom) {
  make(2 * kBytes);
  Block a, b, c;
  for (int i = 0; i < 2; i++) lend_one(a.data()), lend_one(b.data());
  EXPECT_TRUE(lend_one(a.data()));
  lend_one(c.data());
  EXPECT_TRUE(lend_one(c.data()));
  EXPECT_TRUE(lend_one(a.data()));
  EXPECT_FALSE(lend_one(b.data())) << "it was used before a";
  // Of one call nothing makes room for the rest.
  std::vector<Loan> all;
  for (const Block* block : {&a, &b, &c}) all.push_back({block->data(), kBytes, true});
  for (int i = 0; i < 3; i++) {
    std::vector<bool> granted = lend(all);
    EXPECT_EQ(std::count(granted.begin(), granted.end(), true), 2) << "call " << i;
    EXPECT_EQ(registrations_->registered_bytes(), 2 * kBytes);
  }
}

TEST_F(RegistrationsTest, MemoryThatMayNotBeLockedIsPacked) {
  Block a, b;
  lend_one(a.data());
  ASSERT_TRUE(lend_one(a.data()));
  lend_one(b.data());
  RdmaForTests::fake()->fail(verbs::FakeCall::kRegisterMemory, 1, ENOMEM);
  EXPECT_FALSE(lend_one(b.data()));
  EXPECT_TRUE(lend_one(a.data())) << "what is registered stays so";
}

TEST_F(RegistrationsTest, WhatIsNotInUseMakesRoomForASecondDomain) {
  verbs::ProtectionDomain second(context_);
  Block a, b;
  for (int i = 0; i < 2; i++) lend_one(a.data());
  for (int i = 0; i < 2; i++) lend_one(b.data());
  ASSERT_TRUE(find(b.data()));
  RdmaForTests::fake()->fail(verbs::FakeCall::kRegisterMemory, 1, ENOMEM);
  registrations_->add(second);
  EXPECT_TRUE(find(b.data())) << "what this call uses stays";
  EXPECT_TRUE(registrations_->find(second, b.data(), 1, true));
  EXPECT_EQ(registrations_->registered_bytes(), 2 * kBytes) << "once in each domain";
  EXPECT_FALSE(lend_one(a.data())) << "it was not in use";
  make(3 * kBytes);
  for (int i = 0; i < 2; i++) lend_one(a.data());
  for (int i = 0; i < 2; i++) lend_one(b.data());
  EXPECT_EQ(registrations_->registered_bytes(), 2 * kBytes);
  registrations_->add(second);
  EXPECT_EQ(registrations_->registered_bytes(), 2 * kBytes) << "the limit is that of all domains";
  registrations_.reset();
}

TEST_F(RegistrationsTest, TheLimitIsThatOfAllDomains) {
  make(3 * kBytes);
  verbs::ProtectionDomain second(context_);
  registrations_->add(second);
  Block a, b;
  for (const Block* block : {&a, &b, &a}) {
    EXPECT_FALSE(lend_one(block->data()));
    EXPECT_TRUE(lend_one(block->data())) << "the other makes room";
    EXPECT_EQ(registrations_->registered_bytes(), 2 * kBytes);
  }
  registrations_.reset();
}

TEST_F(RegistrationsTest, ASecondDomainHasNothingThatHasChanged) {
  verbs::ProtectionDomain second(context_);
  Block block;
  for (int i = 0; i < 2; i++) lend_one(block.data());
  Block again(block.data());
  registrations_->add(second);
  EXPECT_EQ(registrations_->registered_bytes(), 0u);
  EXPECT_FALSE(lend_one(block.data()));
  registrations_.reset();
}

TEST_F(RegistrationsTest, NothingIsRegisteredIfSwitchedOff) {
  make(0);
  Block block;
  for (int i = 0; i < 3; i++) EXPECT_FALSE(lend_one(block.data()));
}

TEST_F(RegistrationsTest, ForgettingEndsAllAccess) {
  Block block;
  lend_one(block.data());
  ASSERT_TRUE(lend_one(block.data()));
  uint32_t key = find(block.data())->rkey();
  registrations_->forget_all();
  EXPECT_EQ(find(block.data()), nullptr);
  EXPECT_EQ(registrations_->registered_bytes(), 0u);
  EXPECT_FALSE(lend_one(block.data()));
  ASSERT_TRUE(lend_one(block.data()));
  EXPECT_NE(find(block.data())->rkey(), key);
}

}  // namespace
}  // namespace ringcoll::rdma
